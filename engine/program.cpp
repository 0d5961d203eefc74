// Builds the step program: stage by stage, each task with its regions and counters.
#include "engine/program.h"

#include <algorithm>

#include "base/error.h"

namespace assay::engine {

std::int64_t Program::token_capacity() const {
  // Selected pools, and the open tail; chained rows attend everything since the last accepted pool.
  const std::int64_t open = kPoolTokens - 1 + (shape.kind == ProgramKind::kMtpChain ? kMaxRows : 0);
  return std::min(shape.context, model.index_topk + open);
}

Column KdaColumns(const ModelConfig& model, KdaPart part) {
  const std::int64_t channels = model.kda_channels(), rank = model.kda_dim;
  switch (part) {
    case kPartQ:
      return {0, channels};
    case kPartK:
      return {channels, channels};
    case kPartV:
      return {2 * channels, channels};
    case kPartFa:
      return {3 * channels, rank};
    case kPartGa:
      return {3 * channels + rank, rank};
    default:
      return {0, model.kda_heads};  // b, in kHeadScale
  }
}

Column DsaColumns(const ModelConfig& model, DsaPart part) {
  switch (part) {
    case kPartQa:
      return {0, model.q_lora};
    case kPartKvA:
      return {model.q_lora, model.kv_lora};
    case kPartIndexKey:
      return {model.q_lora + model.kv_lora, model.index_dim};
    case kPartPoolGate:
      return {model.q_lora + model.kv_lora + model.index_dim, model.index_dim};
    default:
      return {0, model.index_heads};  // index head weights, in kHeadScale
  }
}

namespace {

class Builder {
 public:
  Builder(const ModelConfig& model, const ProgramShape& shape) : m_(model) {
    program_.model = model;
    program_.shape = shape;
    rows_ = program_.rows();
    SizeBuffers();
  }

  Program Build() {
    program_.shape.kind == ProgramKind::kTrunk ? BuildTrunk() : BuildMtp();
    Finish();
    return std::move(program_);
  }

 private:
  using Counters = std::vector<int>;

  // ---- the trunk ----

  void BuildTrunk() {
    Counters output;  // who finished the previous site
    for (std::int64_t layer = 0; layer < m_.trunk_layers(); ++layer) {
      Enter(layer);
      const int attention_input = MixStage(0, output);
      output = {m_.kind(layer) == LayerKind::kKda ? KdaStages(attention_input)
                                                  : DsaStages(attention_input)};
      const int ffn_input = MixStage(1, output);
      output = m_.dense(layer) ? DenseStages(ffn_input) : MoeStages(ffn_input);
    }
    const Counters streams = MixTasks(2, output);
    const int hidden = NewCounter("hidden");
    for (int row = 0; row < rows_; ++row) {
      Task task = RowTask(Op::kEnd, row);
      task.reads = {Row(Buf::kStreams, row)};
      task.writes = {Row(Buf::kHidden, row)};
      Add(task, {streams[static_cast<std::size_t>(row)]}, {hidden});
    }
    HeadStage(hidden);
  }

  // Both halves of an mHC site; returns the counter of all rows' inputs.
  int MixStage(int site, const Counters& output) {
    const Counters mixed = MixTasks(site, output);
    const int input = NewCounter(SiteName(site) + " input");
    for (int row = 0; row < rows_; ++row) {
      Task task = RowTask(Op::kMixIn, row);
      task.part = static_cast<std::int16_t>(site);
      task.reads = {Row(Buf::kStreams, row), Row(Buf::kPartials, row)};
      task.writes = {Row(Buf::kHyper, row), Row(Buf::kInput, row)};
      Add(task, {mixed[static_cast<std::size_t>(row)]}, {input});
    }
    return input;
  }

  // One counter per row. Site 2 is the end: streams only, no mixes.
  Counters MixTasks(int site, const Counters& output) {
    const bool first = layer_ == 0 && site == 0;
    const bool experts = site != 1 && !first && !m_.dense(site == 2 ? layer_ : layer_ - 1);
    Counters counters;
    for (int row = 0; row < rows_; ++row) {
      const int mixed = NewCounter(SiteName(site) + " mixed row " + std::to_string(row));
      counters.push_back(mixed);
      for (std::int64_t slice = 0; slice < program_.slices(); ++slice) {
        Task task = RowTask(Op::kMix, row);
        task.part = static_cast<std::int16_t>(site);
        task.index = static_cast<std::int32_t>(slice);
        const std::int64_t n0 = slice * kMixSlice, n1 = n0 + kMixSlice;
        SetTile(task, n0, n1);
        for (int stream = 0; stream < kStreamCount; ++stream) {
          const std::int64_t at = stream * m_.hidden;
          const Region part = Rows(Buf::kStreams, row, row + 1, at + n0, at + n1);
          if (!first) task.reads.push_back(part);
          task.writes.push_back(part);
        }
        if (!first) {
          task.reads.push_back(Row(Buf::kHyper, row));
          ReadOutput(task, row, n0, n1, experts);
        }
        if (site != 2) {
          task.writes.push_back(
              Rows(Buf::kPartials, row, row + 1, slice * (kMixes + 1), (slice + 1) * (kMixes + 1)));
        }
        Add(task, output, {mixed});
      }
    }
    return counters;
  }

  // What a consumer of a site's output reads: one buffer, or experts and shared expert.
  void ReadOutput(Task& task, int row, std::int64_t n0, std::int64_t n1, bool experts) {
    task.reads.push_back(Rows(Buf::kOutput, row, row + 1, n0, n1));
    if (!experts) return;
    task.reads.push_back(AllRows(Buf::kRoutes));
    task.reads.push_back(Row(Buf::kRouteWeights, row));
    task.reads.push_back(Rows(Buf::kExpertOut, 0, slots() * rows_, n0, n1));
  }

  // ---- attention ----

  int KdaStages(int input) {
    const int projected = NewCounter("kda projected");
    for (int part = 0; part < kKdaParts; ++part) {
      const Column column = KdaColumns(m_, static_cast<KdaPart>(part));
      const Buf target = part == kPartB ? Buf::kHeadScale : Buf::kProjected;
      ProjectStage(Op::kKdaIn, part, column, target, input, projected);
    }
    const int attended = NewCounter("kda done");
    for (int request = 0; request < program_.shape.requests; ++request) {
      for (std::int64_t head = 0; head < m_.kda_heads; ++head) {
        for (int half = 0; half < 2; ++half) {
          Add(KdaTask(request, head, half), {projected}, {attended});
        }
      }
    }
    return OutStage(Op::kKdaOut, m_.kda_channels(), attended);
  }

  Task KdaTask(int request, std::int64_t head, int half) {
    Task task = RequestTask(Op::kKda, request);
    task.part = static_cast<std::int16_t>(half);
    task.index = static_cast<std::int32_t>(head);
    const std::int64_t dim = m_.kda_dim, v0 = head * dim + half * dim / 2, v1 = v0 + dim / 2;
    SetTile(task, v0, v1);
    for (const KdaPart part : {kPartQ, kPartK}) {
      const std::int64_t at = KdaColumns(m_, part).begin + head * dim;
      task.reads.push_back(OfRequest(Buf::kProjected, request, at, at + dim));
    }
    const std::int64_t v = KdaColumns(m_, kPartV).begin, low = KdaColumns(m_, kPartFa).begin;
    task.reads.push_back(OfRequest(Buf::kProjected, request, v + v0, v + v1));
    task.reads.push_back(OfRequest(Buf::kProjected, request, low, low + 2 * dim));  // f_a, g_a
    task.reads.push_back(OfRequest(Buf::kHeadScale, request, head, head + 1));
    const std::int64_t unit = 2 * head + half;
    for (const Buf state : {Buf::kKdaState, Buf::kConvWindow}) {
      task.reads.push_back(State(state, request, unit, unit + 1));
      task.writes.push_back(State(state, request, unit, unit + 1));
    }
    task.writes.push_back(OfRequest(Buf::kGate, request, v0, v1));
    task.writes.push_back(OfRequest(Buf::kValues, request, v0, v1));
    return task;
  }

  int DsaStages(int input) {
    const int projected = NewCounter("dsa projected");
    for (int part = 0; part < kDsaParts; ++part) {
      const Column column = DsaColumns(m_, static_cast<DsaPart>(part));
      const Buf target = part == kPartIndexHead ? Buf::kHeadScale : Buf::kProjected;
      ProjectStage(Op::kDsaIn, part, column, target, input, projected);
    }
    const Counters appended = AppendTasks(projected);
    const int queries = HeadTasks(Op::kQuery, "queries", m_.heads, projected);
    const Counters selected = program_.shape.kind == ProgramKind::kMtpChain
                                  ? SelectTasks(appended)
                                  : SelectTasks(ScoreTasks(projected, appended));
    const int values = NewCounter("values");
    for (int row = 0; row < rows_; ++row) {
      const auto request = static_cast<std::size_t>(row / program_.shape.rows_per_request);
      const int attended =
          AttendTasks(row, {selected[static_cast<std::size_t>(row)], queries, appended[request]});
      for (std::int64_t head = 0; head < m_.heads; ++head) {
        Task task = RowTask(Op::kValues, row);
        task.index = static_cast<std::int32_t>(head);
        SetTile(task, head * m_.v_dim, (head + 1) * m_.v_dim);
        task.reads = {Row(Buf::kChunkStats, row), Row(Buf::kChunkSums, row),
                      Row(Buf::kSelected, row)};
        task.writes = {Rows(Buf::kValues, row, row + 1, task.n0, task.n1)};
        Add(task, {attended}, {values});
      }
    }
    return OutStage(Op::kDsaOut, m_.heads * m_.v_dim, values);
  }

  // One counter per request. Rows of a request are appended in order by one task.
  Counters AppendTasks(int projected) {
    Counters counters;
    const std::int64_t from = DsaColumns(m_, kPartKvA).begin;
    const Column last = DsaColumns(m_, kPartPoolGate);
    for (int request = 0; request < program_.shape.requests; ++request) {
      counters.push_back(NewCounter("appended " + std::to_string(request)));
      Task task = RequestTask(Op::kAppend, request);
      task.reads = {OfRequest(Buf::kProjected, request, from, last.begin + last.count)};
      for (const Buf state : {Buf::kLatents, Buf::kRing, Buf::kPools}) {
        task.writes.push_back(State(state, request, 0, 1));
      }
      task.reads.push_back(State(Buf::kRing, request, 0, 1));
      Add(task, {projected}, {counters.back()});
    }
    return counters;
  }

  // kQuery or kIndexQuery: one task per head, all rows.
  int HeadTasks(Op op, const std::string& name, std::int64_t heads, int projected) {
    const int counter = NewCounter(name);
    for (std::int64_t head = 0; head < heads; ++head) {
      Task task = MakeTask(op);
      task.index = static_cast<std::int32_t>(head);
      task.reads = {AllRows(Buf::kProjected, 0, m_.q_lora)};
      if (op == Op::kQuery) {
        task.writes = {AllRows(Buf::kQuery, head * m_.kv_lora, (head + 1) * m_.kv_lora)};
      } else {
        task.reads.push_back(AllRows(Buf::kHeadScale, head, head + 1));
        task.writes = {AllRows(Buf::kIndexQuery, head * m_.index_dim, (head + 1) * m_.index_dim),
                       AllRows(Buf::kIndexWeight, head, head + 1)};
      }
      Add(task, {projected}, {counter});
    }
    return counter;
  }

  // One counter per request: its pools are scored once for all its rows.
  Counters ScoreTasks(int projected, const Counters& appended) {
    const int queries = HeadTasks(Op::kIndexQuery, "index queries", m_.index_heads, projected);
    const std::int64_t pools = program_.max_pools();
    Counters counters;
    for (int request = 0; request < program_.shape.requests; ++request) {
      if (pools == 0) {  // nothing to score yet; selection must still follow the appends
        counters.push_back(appended[static_cast<std::size_t>(request)]);
        continue;
      }
      counters.push_back(NewCounter("scored " + std::to_string(request)));
      for (std::int64_t tile = 0; tile * kPoolTile < pools; ++tile) {
        Task task = RequestTask(Op::kIndexScore, request);
        task.index = static_cast<std::int32_t>(tile);
        SetTile(task, tile * kPoolTile, std::min((tile + 1) * kPoolTile, pools));
        task.reads = {OfRequest(Buf::kIndexQuery, request), OfRequest(Buf::kIndexWeight, request),
                      State(Buf::kPools, request, 0, 1)};
        task.writes = {OfRequest(Buf::kScores, request, task.n0, task.n1)};
        Add(task, {queries, appended[static_cast<std::size_t>(request)]}, {counters.back()});
      }
    }
    return counters;
  }

  // One counter per row; `ready` has one per request.
  Counters SelectTasks(const Counters& ready) {
    Counters counters;
    for (int row = 0; row < rows_; ++row) {
      const int request = row / program_.shape.rows_per_request;
      counters.push_back(NewCounter("selected row " + std::to_string(row)));
      Task task = RowTask(Op::kSelect, row);
      if (Used(Buf::kScores)) task.reads = {Row(Buf::kScores, row)};
      task.writes = {Row(Buf::kSelected, row)};
      Add(task, {ready[static_cast<std::size_t>(request)]}, {counters.back()});
    }
    return counters;
  }

  int AttendTasks(int row, const Counters& waits) {
    const int request = row / program_.shape.rows_per_request;
    const int counter = NewCounter("attended row " + std::to_string(row));
    for (std::int64_t chunk = 0; chunk < program_.chunks(); ++chunk) {
      Task task = RowTask(Op::kAttend, row);
      task.index = static_cast<std::int32_t>(chunk);
      const std::int64_t stats = 2 * m_.heads, sums = m_.heads * m_.kv_lora;
      task.reads = {Row(Buf::kSelected, row), Row(Buf::kQuery, row),
                    State(Buf::kLatents, request, 0, 1)};
      task.writes = {Rows(Buf::kChunkStats, row, row + 1, chunk * stats, (chunk + 1) * stats),
                     Rows(Buf::kChunkSums, row, row + 1, chunk * sums, (chunk + 1) * sums)};
      Add(task, waits, {counter});
    }
    return counter;
  }

  int OutStage(Op op, std::int64_t width, int values) {
    const int output = NewCounter("attention output");
    ForTiles(m_.hidden, [&](std::int64_t n0, std::int64_t n1) {
      Task task = MakeTask(op);
      SetTile(task, n0, n1);
      task.reads = {AllRows(Buf::kValues, 0, width)};
      if (op == Op::kKdaOut) task.reads.push_back(AllRows(Buf::kGate));
      task.writes = {AllRows(Buf::kOutput, n0, n1)};
      Add(task, {values}, {output});
    });
    return output;
  }

  // ---- FFN ----

  Counters DenseStages(int input) {
    const int up = UpStage(Op::kDenseUp, m_.dense_inter, input);
    return {DownStage(Op::kDenseDown, m_.dense_inter, up)};
  }

  // The shared expert's tiles come first: they cover the routing.
  Counters MoeStages(int input) {
    const int shared =
        DownStage(Op::kSharedDown, m_.expert_inter, UpStage(Op::kSharedUp, m_.expert_inter, input));
    const int logits = NewCounter("router logits");
    ForTiles(m_.experts, [&](std::int64_t n0, std::int64_t n1) {
      Task task = MakeTask(Op::kRouter);
      SetTile(task, n0, n1);
      task.reads = {AllRows(Buf::kInput)};
      task.writes = {AllRows(Buf::kRouterLogits, n0, n1)};
      Add(task, {input}, {logits});
    });
    const int routed = NewCounter("routed");
    Task route = MakeTask(Op::kRoute);
    route.reads = {AllRows(Buf::kRouterLogits)};
    route.writes = {AllRows(Buf::kRoutes), AllRows(Buf::kRouteWeights)};
    Add(route, {logits}, {routed});
    const int experts = NewCounter("experts");
    for (std::int64_t slot = 0; slot < slots(); ++slot) ExpertTasks(slot, routed, experts);
    return {shared, experts};
  }

  void ExpertTasks(std::int64_t slot, int routed, int done) {
    const std::int64_t row0 = slot * rows_, row1 = row0 + rows_;
    const int activated = NewCounter("expert slot " + std::to_string(slot));
    ForTiles(m_.expert_inter, [&](std::int64_t n0, std::int64_t n1) {
      Task task = MakeTask(Op::kExpertUp);
      task.index = static_cast<std::int32_t>(slot);
      SetTile(task, n0, n1);
      task.reads = {AllRows(Buf::kInput), AllRows(Buf::kRoutes)};
      task.writes = {Rows(Buf::kExpertAct, row0, row1, n0, n1)};
      Add(task, {routed}, {activated});
    });
    ForTiles(m_.hidden, [&](std::int64_t n0, std::int64_t n1) {
      Task task = MakeTask(Op::kExpertDown);
      task.index = static_cast<std::int32_t>(slot);
      SetTile(task, n0, n1);
      task.reads = {Rows(Buf::kExpertAct, row0, row1, 0, m_.expert_inter), AllRows(Buf::kRoutes)};
      task.writes = {Rows(Buf::kExpertOut, row0, row1, n0, n1)};
      Add(task, {activated}, {done});
    });
  }

  int UpStage(Op op, std::int64_t inter, int input) {
    const int counter = NewCounter("activated");
    ForTiles(inter, [&](std::int64_t n0, std::int64_t n1) {
      Task task = MakeTask(op);
      SetTile(task, n0, n1);
      task.reads = {AllRows(Buf::kInput)};
      task.writes = {AllRows(Buf::kActivated, n0, n1)};
      Add(task, {input}, {counter});
    });
    return counter;
  }

  int DownStage(Op op, std::int64_t inter, int activated) {
    const int counter = NewCounter("ffn output");
    ForTiles(m_.hidden, [&](std::int64_t n0, std::int64_t n1) {
      Task task = MakeTask(op);
      SetTile(task, n0, n1);
      task.reads = {AllRows(Buf::kActivated, 0, inter)};
      task.writes = {AllRows(Buf::kOutput, n0, n1)};
      Add(task, {activated}, {counter});
    });
    return counter;
  }

  // ---- MTP layer and vocabulary ----

  void BuildMtp() {
    Enter(m_.trunk_layers());
    const int embedded = NewCounter("mtp embedded");
    for (int row = 0; row < rows_; ++row) {
      Task task = RowTask(Op::kMtpEmbed, row);
      task.writes = {Row(Buf::kMtpInput, row)};
      Add(task, {}, {embedded});
    }
    const int projected = NewCounter("mtp projected");
    ForTiles(m_.hidden, [&](std::int64_t n0, std::int64_t n1) {
      Task task = MakeTask(Op::kMtpProject);
      SetTile(task, n0, n1);
      task.reads = {AllRows(Buf::kMtpInput)};
      task.writes = {AllRows(Buf::kStreams, n0, n1)};
      Add(task, {embedded}, {projected});
    });
    const int attention = ResidualStage(0, {projected});
    const int ffn = ResidualStage(1, {DsaStages(attention)});
    HeadStage(ResidualStage(2, MoeStages(ffn)));
  }

  // Part 0: norm only; 1: + attention output; 2: + experts, and the final norm.
  int ResidualStage(int part, const Counters& output) {
    const int counter = NewCounter(part == 2 ? "hidden" : SiteName(part) + " input");
    for (int row = 0; row < rows_; ++row) {
      Task task = RowTask(Op::kMtpResidual, row);
      task.part = static_cast<std::int16_t>(part);
      task.reads = {Rows(Buf::kStreams, row, row + 1, 0, m_.hidden)};
      if (part > 0) {
        ReadOutput(task, row, 0, m_.hidden, part == 2);
        task.writes = {Rows(Buf::kStreams, row, row + 1, 0, m_.hidden)};
      }
      task.writes.push_back(Row(part == 2 ? Buf::kHidden : Buf::kInput, row));
      Add(task, output, {counter});
    }
    return counter;
  }

  void HeadStage(int hidden) {
    const int logits = NewCounter("logits");
    ForTiles(m_.vocab, [&](std::int64_t n0, std::int64_t n1) {
      Task task = MakeTask(Op::kHead);
      SetTile(task, n0, n1);
      task.reads = {AllRows(Buf::kHidden)};
      task.writes = {AllRows(Buf::kLogits, n0, n1)};
      Add(task, {hidden}, {logits});
    });
  }

  // ---- tools ----

  void ProjectStage(Op op, int part, Column column, Buf target, int input, int done) {
    ForTiles(column.count, [&](std::int64_t n0, std::int64_t n1) {
      Task task = MakeTask(op);
      task.part = static_cast<std::int16_t>(part);
      SetTile(task, n0, n1);
      task.reads = {AllRows(Buf::kInput)};
      task.writes = {AllRows(target, column.begin + n0, column.begin + n1)};
      Add(task, {input}, {done});
    });
  }

  template <class Body>
  void ForTiles(std::int64_t count, const Body& body) {
    for (std::int64_t n0 = 0; n0 < count; n0 += kTileColumns) {
      body(n0, std::min(n0 + kTileColumns, count));
    }
  }

  std::int64_t slots() const {
    return std::min<std::int64_t>(m_.experts, rows_ * m_.experts_per_token);
  }

  static std::string SiteName(int site) {
    return site == 0 ? "attention" : site == 1 ? "ffn" : "final";
  }
  void Enter(std::int64_t layer) { layer_ = layer; }
  int NewCounter(const std::string& name) {
    program_.counters.push_back({"L" + std::to_string(layer_) + " " + name, 0});
    return static_cast<int>(program_.counters.size()) - 1;
  }
  Task MakeTask(Op op) const {
    Task task;
    task.op = op;
    task.layer = static_cast<std::int16_t>(layer_);
    return task;
  }
  Task RowTask(Op op, int row) const {
    Task task = MakeTask(op);
    task.row = row;
    task.request = row / program_.shape.rows_per_request;
    return task;
  }
  Task RequestTask(Op op, int request) const {
    Task task = MakeTask(op);
    task.request = request;
    return task;
  }
  static void SetTile(Task& task, std::int64_t n0, std::int64_t n1) {
    task.n0 = static_cast<std::int32_t>(n0);
    task.n1 = static_cast<std::int32_t>(n1);
  }
  void Add(Task task, const Counters& waits, const Counters& signals) {
    for (const int counter : waits) task.waits.push_back({counter, 0});  // target: Finish
    for (const int counter : signals) {
      task.signals.push_back(counter);
      ++program_.counters[static_cast<std::size_t>(counter)].signals;
    }
    program_.tasks.push_back(std::move(task));
  }
  void Finish() {
    int next = 0;
    for (Task& task : program_.tasks) {
      task.worker = next++ % program_.shape.workers;
      for (Wait& wait : task.waits) {
        wait.target = program_.counters[static_cast<std::size_t>(wait.counter)].signals;
      }
    }
  }

  bool Used(Buf b) const { return program_.buffer(b).rows > 0 && program_.buffer(b).columns > 0; }
  Region Rows(Buf b, std::int64_t row0, std::int64_t row1, std::int64_t c0, std::int64_t c1) const {
    return {b, -1, row0, row1, c0, c1};
  }
  Region Row(Buf b, int row) const { return Rows(b, row, row + 1, 0, program_.buffer(b).columns); }
  Region AllRows(Buf b, std::int64_t c0, std::int64_t c1) const {
    return Rows(b, 0, program_.buffer(b).rows, c0, c1);
  }
  Region AllRows(Buf b) const { return AllRows(b, 0, program_.buffer(b).columns); }
  Region OfRequest(Buf b, int request, std::int64_t c0, std::int64_t c1) const {
    const std::int64_t v = program_.shape.rows_per_request;
    return Rows(b, request * v, (request + 1) * v, c0, c1);
  }
  Region OfRequest(Buf b, int request) const {
    return OfRequest(b, request, 0, program_.buffer(b).columns);
  }
  Region State(Buf b, int request, std::int64_t c0, std::int64_t c1) const {
    return {b, layer_, request, request + 1, c0, c1};
  }

  void SizeBuffers() {
    program_.buffers.resize(static_cast<std::size_t>(Buf::kCount));
    const auto set = [&](Buf b, Element element, std::int64_t rows, std::int64_t columns) {
      program_.buffers[static_cast<std::size_t>(b)] = {element, rows, columns,
                                                       element == Element::kState};
    };
    const ProgramKind kind = program_.shape.kind;
    const bool trunk = kind == ProgramKind::kTrunk;
    const std::int64_t kda = trunk ? m_.kda_channels() : 0;
    const std::int64_t kda_in = 3 * kda + (trunk ? 2 * m_.kda_dim : 0);
    const std::int64_t dsa_in = m_.q_lora + m_.kv_lora + 2 * m_.index_dim;
    set(Buf::kStreams, Element::kBF16, rows_, (trunk ? kStreamCount : 1) * m_.hidden);
    if (trunk) {
      set(Buf::kPartials, Element::kF32, rows_, program_.slices() * (kMixes + 1));
      set(Buf::kHyper, Element::kF32, rows_, kStreamCount + kStreamCount * kStreamCount);
      set(Buf::kGate, Element::kBF16, rows_, kda);
      set(Buf::kKdaState, Element::kState, program_.shape.requests, 2 * m_.kda_heads);
      set(Buf::kConvWindow, Element::kState, program_.shape.requests, 2 * m_.kda_heads);
    } else {
      set(Buf::kMtpInput, Element::kBF16, rows_, 2 * m_.hidden);
    }
    set(Buf::kInput, Element::kBF16, rows_, m_.hidden);
    set(Buf::kProjected, Element::kBF16, rows_, std::max(kda_in, dsa_in));
    set(Buf::kHeadScale, Element::kF32, rows_, std::max(trunk ? m_.kda_heads : 0, m_.index_heads));
    set(Buf::kValues, Element::kBF16, rows_, std::max(kda, m_.heads * m_.v_dim));
    set(Buf::kOutput, Element::kBF16, rows_, m_.hidden);
    set(Buf::kQuery, Element::kBF16, rows_, m_.heads * m_.kv_lora);
    if (kind != ProgramKind::kMtpChain) {
      set(Buf::kIndexQuery, Element::kE4M3, rows_, m_.index_heads * m_.index_dim);
      set(Buf::kIndexWeight, Element::kF32, rows_, m_.index_heads);
      if (program_.max_pools() > 0) set(Buf::kScores, Element::kF32, rows_, program_.max_pools());
    }
    set(Buf::kSelected, Element::kI32, rows_, 2 + m_.topk_pools() + program_.token_capacity());
    set(Buf::kChunkStats, Element::kF32, rows_, program_.chunks() * 2 * m_.heads);
    set(Buf::kChunkSums, Element::kF32, rows_, program_.chunks() * m_.heads * m_.kv_lora);
    const bool dense = trunk && m_.dense_layers > 0;
    set(Buf::kActivated, Element::kBF16, rows_,
        std::max(dense ? m_.dense_inter : 0, m_.expert_inter));
    set(Buf::kRouterLogits, Element::kF32, rows_, m_.experts);
    set(Buf::kRoutes, Element::kI32, 1, 1 + 2 * slots() + rows_ * m_.experts_per_token);
    set(Buf::kRouteWeights, Element::kF32, rows_, m_.experts_per_token);
    set(Buf::kExpertAct, Element::kBF16, slots() * rows_, m_.expert_inter);
    set(Buf::kExpertOut, Element::kBF16, slots() * rows_, m_.hidden);
    set(Buf::kHidden, Element::kBF16, rows_, m_.hidden);
    set(Buf::kLogits, Element::kF32, rows_, m_.vocab);
    for (const Buf b : {Buf::kLatents, Buf::kRing, Buf::kPools}) {
      set(b, Element::kState, program_.shape.requests, 1);
    }
  }

  const ModelConfig& m_;
  Program program_;
  int rows_ = 0;
  std::int64_t layer_ = 0;
};

}  // namespace

Program BuildProgram(const ModelConfig& model, const ProgramShape& shape) {
  ValidateConfig(model);
  const int rows = shape.requests * shape.rows_per_request;
  if (shape.requests < 1 || shape.rows_per_request < 1 || rows > kMaxRows) {
    BadInput("a step of " + std::to_string(shape.requests) + " requests with " +
             std::to_string(shape.rows_per_request) + " rows each: 1 to " +
             std::to_string(kMaxRows) + " rows are possible");
  }
  if (shape.context < shape.rows_per_request || shape.context > model.max_positions) {
    BadInput("a context of " + std::to_string(shape.context) +
             " tokens: " + std::to_string(shape.rows_per_request) + " to " +
             std::to_string(model.max_positions) + " are possible");
  }
  if (shape.workers < 1)
    BadInput("a step program for " + std::to_string(shape.workers) + " workers");
  if (shape.kind != ProgramKind::kTrunk && !model.mtp) {
    BadInput("model " + model.name + " has no MTP layer to draft with");
  }
  return Builder(model, shape).Build();
}

}  // namespace assay::engine
