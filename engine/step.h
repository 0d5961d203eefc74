// One run of a step program: its memory, its rows, and what task bodies see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "engine/matrix_math.h"
#include "engine/model.h"
#include "engine/program.h"
#include "engine/state.h"

namespace assay::engine {

// The activation buffers of a program, zeroed, each on its own cache lines.
class Workspace {
 public:
  explicit Workspace(const Program& program);

  template <class T>
  T* row(Buf b, std::int64_t row = 0) {
    return reinterpret_cast<T*>(data(b)) + row * columns_[static_cast<std::size_t>(b)];
  }
  std::byte* data(Buf b) { return memory_.data() + offsets_[static_cast<std::size_t>(b)]; }
  std::int64_t bytes(Buf b) const { return sizes_[static_cast<std::size_t>(b)]; }
  std::int64_t total_bytes() const { return static_cast<std::int64_t>(memory_.size()); }
  // Fills everything with NaN patterns.
  void Poison();

 private:
  std::vector<std::byte> memory_;
  std::vector<std::int64_t> offsets_, sizes_, columns_;  // by Buf
};
std::int64_t ElementBytes(Element element);

// Pools that chained MTP rows attend, made by the row that closed the last cycle.
struct SeededSelection {
  std::vector<std::int32_t> pools;  // ascending
  std::int64_t open_from = 0;       // all tokens from here on are attended as well
};

// What one request contributes to a step. Rows beyond `rows` (and all rows of an absent request)
// are padding: they change no byte outside their own activation rows.
struct StepRequest {
  int slot = -1;           // in the state; -1 = absent
  int rows = 0;            // live ones, first in the request's rows
  std::int64_t start = 0;  // position of the first row
  SeededSelection seed;    // kMtpChain only
};

struct Step {
  const Model* model = nullptr;
  const Program* program = nullptr;
  State* state = nullptr;
  Workspace* workspace = nullptr;
  const MatrixMath* math = nullptr;
  std::vector<StepRequest> requests;
  std::vector<std::int32_t> tokens;  // by row
  std::vector<bf16> hidden;          // MTP: [rows, hidden], the hidden of each row's position

  const ModelConfig& config() const { return model->config; }
  const LayerWeights& layer(const Task& task) const {
    return model->layers[static_cast<std::size_t>(task.layer)];
  }
  int rows_per_request() const { return program->shape.rows_per_request; }
  const StepRequest& request(int index) const { return requests[static_cast<std::size_t>(index)]; }
  bool live(int row) const {
    const StepRequest& owner = request(row / rows_per_request());
    return owner.slot >= 0 && row % rows_per_request() < owner.rows;
  }
  std::int64_t position(int row) const {
    return request(row / rows_per_request()).start + row % rows_per_request();
  }
  // Calls body(first row, count) for each run of neighbouring live rows.
  void ForLiveRuns(const std::function<void(int row, int count)>& body) const;
};

// Throws kInput for a step that does not fit its program or state: wrong counts, tokens outside the
// vocabulary, positions that do not follow the committed length, a context beyond the bucket, a
// ring that is too narrow. Nothing has changed then.
void CheckStep(const Step& step);

// kRoutes: how many distinct experts, then their ids (ascending), then a bit mask of rows for each,
// then for each row the slots of its experts, ascending.
struct RouteTable {
  std::int32_t* count = nullptr;
  std::int32_t* experts = nullptr;  // [slots]
  std::int32_t* rows = nullptr;     // [slots], bit r = row r
  std::int32_t* slots = nullptr;    // [rows, top-k]
};
RouteTable Routes(const Step& step);

// kSelected of a row.
struct SelectedTokens {
  std::int32_t* pool_count = nullptr;
  std::int32_t* token_count = nullptr;
  std::int32_t* pools = nullptr;
  std::int32_t* tokens = nullptr;
};
SelectedTokens Selected(const Step& step, int row);

// ---- task bodies ----

using Body = std::function<void(const Step&, const Task&)>;
// By Op. Executors run these; tests replace single ones by wrong ones.
using Bodies = std::vector<Body>;
Bodies EngineBodies();

// One body per op, in bodies_*.cpp.
void Mix(const Step&, const Task&);
void MixIn(const Step&, const Task&);
void End(const Step&, const Task&);
void MtpEmbed(const Step&, const Task&);
void MtpProject(const Step&, const Task&);
void MtpResidual(const Step&, const Task&);
void KdaIn(const Step&, const Task&);
void Kda(const Step&, const Task&);
void KdaOut(const Step&, const Task&);
void DsaIn(const Step&, const Task&);
void Append(const Step&, const Task&);
void Query(const Step&, const Task&);
void IndexQuery(const Step&, const Task&);
void IndexScore(const Step&, const Task&);
void Select(const Step&, const Task&);
void Attend(const Step&, const Task&);
void Values(const Step&, const Task&);
void DsaOut(const Step&, const Task&);
void DenseUp(const Step&, const Task&);
void DenseDown(const Step&, const Task&);
void Router(const Step&, const Task&);
void Route(const Step&, const Task&);
void SharedUp(const Step&, const Task&);
void SharedDown(const Step&, const Task&);
void ExpertUp(const Step&, const Task&);
void ExpertDown(const Step&, const Task&);
void Head(const Step&, const Task&);

// ---- what bodies share (bodies_common.cpp) ----

// y = w * (x * rstd), rstd = 1 / sqrt(mean(x^2) + eps), fp32 inside, bf16 out. n may be any length.
void RmsNormRow(const bf16* x, const float* weight, std::int64_t n, double eps, bf16* y);
// Columns [n0, n1) of x W^T for `count` rows, rounded to bf16.
void LinearToBF16(const Step& step, const Matrix& w, std::int64_t n0, std::int64_t n1,
                  const bf16* x, std::int64_t x_stride, int count, bf16* y, std::int64_t y_stride);
// Rotates a vector, rounds to bf16, picks a power-of-two scale, rounds to e4m3; returns the scale.
float RotateAndQuantise(const bf16* x, std::int64_t n, e4m3* target);

}  // namespace assay::engine
