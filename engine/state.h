// What requests own between steps: paged caches, the ring of recent index keys, recurrent states
// and convolution windows. A step reads committed bytes and writes others; commit makes them count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "engine/config.h"
#include "engine/program.h"
#include "engine/scalar_math.h"

namespace assay::engine {

inline constexpr std::int64_t kPageSlots = 64;  // tokens of a latent page, pools of a pool page
inline constexpr std::int64_t kPoolPageTokens = kPageSlots * kPoolTokens;

struct StateOptions {
  int slots = 1;             // requests at a time
  int rows_per_request = 1;  // the most rows of a step
  CommitMode commit = CommitMode::kReplay;
  std::int64_t tokens = 0;  // cache capacity shared by all requests, rounded up to pages
  int ring_width = 0;       // entries of the ring; 0 = what the rows need
};

// Entries that a ring needs: an open pool and the rows of one step must fit. (A step of one row may
// overwrite the oldest token of a full pool.)
constexpr int RingWidth(int rows_per_request) {
  return rows_per_request == 1 ? kPoolTokens : kPoolTokens + rows_per_request;
}

// Pages with reference counts. Page 0 is reserved, so that a zeroed page table names no real data.
class PagePool {
 public:
  explicit PagePool(std::int64_t pages) : references_(static_cast<std::size_t>(pages) + 1) {
    for (std::int64_t page = pages; page > 0; --page) free_.push_back(static_cast<int>(page));
  }
  std::int64_t available() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t pages() const { return static_cast<std::int64_t>(references_.size()); }
  int Take();  // requires available() > 0
  void Share(int page) { ++references_[static_cast<std::size_t>(page)]; }
  void Release(int page);
  bool free(int page) const { return references_[static_cast<std::size_t>(page)] == 0; }
  bool shared(int page) const { return references_[static_cast<std::size_t>(page)] > 1; }

 private:
  std::vector<int> references_;
  std::vector<int> free_;  // last one is taken next
};

// The pieces of one pool entry.
struct PoolEntry {
  e4m3* key = nullptr;     // [index_dim], rotated
  float* scale = nullptr;  // a power of two
};

// What a row logs instead of a whole state, per KDA layer, request and row.
struct KdaLog {
  float* key = nullptr;    // [heads, K], normalised
  float* decay = nullptr;  // [heads, K], e^gamma
  float* delta = nullptr;  // [heads, V]
};

class State {
 public:
  State(const ModelConfig& model, const StateOptions& options);

  const StateOptions& options() const { return options_; }
  int ring_width() const {
    return options_.ring_width > 0 ? options_.ring_width : RingWidth(options_.rows_per_request);
  }
  std::size_t bytes() const;

  // ---- requests ----

  // A fresh request of length 0. Throws kInput when all slots are taken.
  int Create();
  void Free(int slot);
  // A copy of a request's committed state that shares its pages (copied on the first write); with
  // `rows` > 0, as if that many rows of the step that ran last had been accepted. Throws kInput
  // without a free slot.
  int Fork(int slot, int rows = 0);
  bool live(int slot) const { return requests_[static_cast<std::size_t>(slot)].live; }
  std::int64_t length(int slot) const { return requests_[static_cast<std::size_t>(slot)].length; }

  // Whether Create and Fork would find a slot.
  bool HasSlot() const;
  // Makes positions `from` (default: the length) .. length + rows - 1 writable: pages exist and
  // belong to this request alone. Throws kInput, changing nothing, when pages run out.
  void Reserve(int slot, std::int64_t rows, std::optional<std::int64_t> from = std::nullopt);
  // Whether there are pages for that.
  bool HasRoom(int slot, std::int64_t rows, std::optional<std::int64_t> from = std::nullopt) const;
  // The next `accepted` rows of the step that ran last become committed. 0 changes nothing.
  void Commit(int slot, int accepted);
  // Replay mode: applies pending updates now, with the bits that the next step would produce.
  void Flush(int slot);
  // A request that claims `length` tokens whose cache content somebody else fills (tests, benches).
  void SetLength(int slot, std::int64_t length);

  // ---- addresses ----

  bf16* Latent(std::int64_t dsa, int slot, std::int64_t position);
  PoolEntry Pool(std::int64_t dsa, int slot, std::int64_t pool);
  // Key [index_dim], then gate [index_dim]; slot = position mod width.
  bf16* Ring(std::int64_t dsa, int slot, std::int64_t position);

  // Committed base of a head's state [V, K], and the place a step writes: in replay mode the base
  // with pending updates applied, in scratch mode the state after `row`.
  const float* KdaBase(std::int64_t kda, int slot, std::int64_t head) const;
  float* KdaNextBase(std::int64_t kda, int slot, std::int64_t head);
  float* KdaScratch(std::int64_t kda, int slot, int row, std::int64_t head);
  int pending(int slot) const { return requests_[static_cast<std::size_t>(slot)].pending; }
  KdaLog PendingLog(std::int64_t kda, int slot, int row);
  KdaLog NextLog(std::int64_t kda, int slot, int row);

  // Pre-convolution values of q, k, v channels [3 channels]. `age` counts back from the newest
  // committed token: 0, 1, 2. NextInputs is where a step leaves those of its rows.
  const bf16* WindowEntry(std::int64_t kda, int slot, int age) const;
  bf16* NextInputs(std::int64_t kda, int slot, int row);
  // Replay mode: where a step leaves the window after the pending rows; entry 0 is the oldest.
  bf16* NextWindow(std::int64_t kda, int slot, int entry);

  // Every byte that later rows of a request can read, part by part; the same for equal histories,
  // whatever the pages, the commit mode or the speculation. The MTP layer's part counts once its
  // rows have run.
  using Visit = std::function<void(const std::string& part, std::span<const std::byte> bytes)>;
  void ForEachVisible(int slot, bool mtp_layer, const Visit& visit);
  std::uint64_t Fingerprint(int slot, bool mtp_layer);
  // Every byte that a trunk step of `rows` live rows writes for a request, part by part.
  void ForEachWritten(int slot, int rows, const Visit& visit);
  // The committed state of a KDA layer [heads, V, K], pending updates applied.
  void CurrentState(std::int64_t kda, int slot, float* target);

  // Fills everything that no live request can read with NaN patterns (tests).
  void PoisonUnreadable();

 private:
  struct Request {
    bool live = false;
    std::int64_t length = 0;
    std::vector<int> token_pages, pool_pages;
    int half = 0;     // which buffers hold the committed base and the pending log
    int pending = 0;  // rows of the log that are accepted, but not yet in the base (replay mode)
  };

  Request& request(int slot);
  const Request& request(int slot) const { return requests_[static_cast<std::size_t>(slot)]; }
  // Pages that tokens [begin, end) need beyond those this request has for itself.
  std::int64_t MissingPages(const Request& request, bool tokens, std::int64_t begin,
                            std::int64_t end) const;
  void OwnPages(Request& request, bool tokens, std::int64_t begin, std::int64_t end);
  void CopyPage(bool tokens, int from, int to);
  void PoisonRequest(int slot);
  void VisitTokens(std::int64_t dsa, int slot, std::int64_t begin, std::int64_t end,
                   const Visit& visit);
  float* Base(int half, std::int64_t kda, int slot);
  float* LogRow(int half, std::int64_t kda, int slot, int row);
  KdaLog LogAt(int half, std::int64_t kda, int slot, int row);
  bf16* Window(int half, std::int64_t kda, int slot, int entry);
  bf16* Inputs(int half, std::int64_t kda, int slot, int row);
  void AdvanceWindow(int slot, int accepted);
  void CopyRecurrent(int from, int to, int rows);

  ModelConfig model_;
  StateOptions options_;
  std::int64_t state_floats_ = 0, log_floats_ = 0, channels_ = 0, pool_page_bytes_ = 0;
  PagePool token_pool_, pool_pool_;
  std::vector<Request> requests_;
  std::vector<bf16> latents_;        // [dsa layer, page, 64, kv_lora]
  std::vector<std::uint8_t> pools_;  // [dsa layer, page, 64 * index_dim + 64 * 4]
  std::vector<bf16> ring_;           // [dsa layer, slot, width, 2, index_dim]
  std::vector<float> base_;          // [2, kda layer, slot, heads, V, K]
  std::vector<float> scratch_;       // [kda layer, slot, row, heads, V, K], scratch mode
  std::vector<float> log_;           // [2, kda layer, slot, row, 3 channels], replay mode
  std::vector<bf16> window_;         // [2, kda layer, slot, 3, 3 channels], oldest first
  std::vector<bf16> inputs_;         // [2, kda layer, slot, row, 3 channels]
};

// S <- S diag(decay) + delta key^T for one row of the state, in the only order there is: the
// product rounded, then one multiply-add. Both commit modes, the step and Flush use it.
inline void UpdateStateRow(float* s, const float* decay, const float* key, float delta,
                           std::int64_t k) {
  for (std::int64_t i = 0; i < k; ++i) s[i] = exact::Fma(delta, key[i], exact::Mul(s[i], decay[i]));
}

}  // namespace assay::engine
