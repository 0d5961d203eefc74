// Mistakes that people make in such engines. Each one is applied on purpose, and the check that is
// meant to see it must see it; the same check passes on the engine as it is.
#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "engine/check.h"
#include "engine/generate.h"
#include "engine/scalar_math.h"
#include "engine/test_support.h"

namespace assay::engine {
namespace {

using Change = std::function<void(Bodies&)>;

Body& At(Bodies& bodies, Op op) { return bodies[static_cast<std::size_t>(op)]; }

// Runs `right`, then `spoil` on what it wrote.
void After(Bodies& bodies, Op op, const Body& spoil) {
  const Body right = At(bodies, op);
  At(bodies, op) = [right, spoil](const Step& step, const Task& task) {
    right(step, task);
    spoil(step, task);
  };
}

std::unique_ptr<Executor> Changed(const Change& change) {
  CpuOptions options;
  change(options.bodies);
  return MakeCpuExecutor(options);
}

// ---- check 1: verify equals decode, both by the executor under test ----

constexpr int kRows = 5;

bool VerifyIsDecode(const Change& change, std::int64_t length = 17) {
  const auto plain = MakeCpuExecutor({}), changed = Changed(change);
  State state(TinyModel().config, {.slots = 3, .rows_per_request = kRows, .tokens = 1024});
  Runner runner(TinyModel(), state, *plain);
  const int slot = state.Create();
  Grow(runner, slot, 1, length);
  runner.set_executor(*changed);
  const int fork = state.Fork(slot);
  const std::vector<RowResult> expected = Decode(runner, fork, 1, kRows);
  std::vector<std::int32_t> tokens;
  for (int r = 0; r < kRows; ++r) tokens.push_back(TokenAt(1, length + r));
  const StepOutput output =
      runner.Run(ProgramKind::kTrunk, kRows, {{slot, kRows, length, {}}}, tokens);
  bool same = true;
  for (int r = 0; r < kRows; ++r)
    same = same && ResultOf(output, r) == expected[static_cast<std::size_t>(r)];
  state.Commit(slot, kRows);
  return same && state.Fingerprint(slot, false) == state.Fingerprint(fork, false);
}

// Selection as of the step's last row: rows see pools and tokens that only later rows append.
void SelectAsLastRow(Bodies& bodies) {
  const Body right = At(bodies, Op::kSelect);
  At(bodies, Op::kSelect) = [right](const Step& step, const Task& task) {
    Step shifted = step;
    const int v = step.rows_per_request();
    shifted.requests[static_cast<std::size_t>(task.request)].start += v - 1 - task.row % v;
    right(shifted, task);
  };
}

// Two accumulators for small steps, one for large ones: a tile choice that depends on the rows.
void SplitKByRows(Bodies& bodies) {
  After(bodies, Op::kKdaOut, [](const Step& step, const Task& task) {
    if (step.program->rows() > 1) return;
    bf16* y = step.workspace->row<bf16>(Buf::kOutput, 0);
    for (int i = task.n0; i < task.n1; ++i) y[i].bits ^= 1;
  });
}

// A task that signals before it stores: its result appears when the next one of its kind runs.
void SignalBeforeStore(Bodies& bodies) {
  const Body right = At(bodies, Op::kDenseDown);
  auto late = std::make_shared<std::function<void()>>();
  At(bodies, Op::kDenseDown) = [right, late](const Step& step, const Task& task) {
    if (*late) (*late)();
    *late = [right, step, task] { right(step, task); };
  };
}

// The first row's convolution inputs are lost for the rows after it.
void WindowWithoutEarlierRows(Bodies& bodies) {
  const Body right = At(bodies, Op::kKda);
  At(bodies, Op::kKda) = [right](const Step& step, const Task& task) {
    bf16* first = step.workspace->row<bf16>(Buf::kProjected, 0);
    if (step.program->rows() > 1) std::fill(first + task.n0, first + task.n1, bf16{});
    right(step, task);
  };
}

// A verify step writes into the committed open tail before its pool closes.
void StaleRing(Bodies& bodies) {
  const Body right = At(bodies, Op::kAppend);
  At(bodies, Op::kAppend) = [right](const Step& step, const Task& task) {
    const StepRequest& request = step.request(task.request);
    const std::int64_t open = request.start / kPoolTokens * kPoolTokens;
    if (request.rows > 1 && open < request.start) {
      bf16* ring = step.state->Ring(0, request.slot, open);
      std::fill(ring, ring + step.config().index_dim, bf16{});
    }
    right(step, task);
  };
}

TEST(Mutations, VerifyAgainstDecode) {
  EXPECT_TRUE(VerifyIsDecode([](Bodies&) {}));
  EXPECT_FALSE(VerifyIsDecode(SplitKByRows));
  EXPECT_FALSE(VerifyIsDecode(SignalBeforeStore));
  EXPECT_FALSE(VerifyIsDecode(WindowWithoutEarlierRows));
  EXPECT_FALSE(VerifyIsDecode(StaleRing, 18));
}

// Rows that select among pools which only a later row closes, on a model where selection matters.
TEST(Mutations, PoolClosedByTheWrongRow) {
  EXPECT_TRUE(VerifyIsDecode([](Bodies&) {}, 57));
  EXPECT_FALSE(VerifyIsDecode(SelectAsLastRow, 57));
}

// ---- check 2: against fp64 ----

std::vector<std::string> ReferenceProblems(const Change& change, std::int64_t length = 32) {
  const auto changed = Changed(change);
  State state(TinyModel().config, {.slots = 2, .rows_per_request = 4, .tokens = 512});
  Runner runner(TinyModel(), state, *changed);
  Checker checker(runner, *changed);
  const int slot = state.Create();
  for (std::int64_t start = 0; start < length; start += 4) {
    std::vector<std::int32_t> tokens;
    for (int r = 0; r < 4; ++r) tokens.push_back(TokenAt(1, start + r));
    runner.Run(ProgramKind::kTrunk, 4, {{slot, 4, start, {}}}, tokens);
    checker.Check(CheckMode::kReference, *changed);
    state.Commit(slot, 4);
  }
  return checker.findings().problems;
}

float* Hyper(const Step& step, const Task& task) {
  return step.workspace->row<float>(Buf::kHyper, task.row);
}

void TransposeC(Bodies& bodies) {
  After(bodies, Op::kMixIn, [](const Step& step, const Task& task) {
    float* c = Hyper(step, task) + kStreamCount;
    for (int j = 0; j < kStreamCount; ++j) {
      for (int k = 0; k < j; ++k) std::swap(c[j * kStreamCount + k], c[k * kStreamCount + j]);
    }
  });
}

void PostWithoutFactor(Bodies& bodies) {
  After(bodies, Op::kMixIn, [](const Step& step, const Task& task) {
    for (int j = 0; j < kStreamCount; ++j) Hyper(step, task)[j] *= 0.5f;
  });
}

void WorstExperts(Bodies& bodies) {
  const Body right = At(bodies, Op::kRoute);
  At(bodies, Op::kRoute) = [right](const Step& step, const Task& task) {
    for (int row = 0; row < step.program->rows(); ++row) {
      float* logits = step.workspace->row<float>(Buf::kRouterLogits, row);
      for (std::int64_t e = 0; e < step.config().experts; ++e) logits[e] = -logits[e];
    }
    right(step, task);
  };
}

void NoTail(Bodies& bodies) {
  After(bodies, Op::kSelect, [](const Step& step, const Task& task) {
    const SelectedTokens selected = Selected(step, task.row);
    *selected.token_count = std::max(1, *selected.pool_count * kPoolTokens);
  });
}

void UnboundedGate(Bodies& bodies) {
  const Body right = At(bodies, Op::kKda);
  At(bodies, Op::kKda) = [right](const Step& step, const Task& task) {
    Model wrong = *step.model;
    wrong.config.gate = GateKind::kUnbounded;
    Step changed = step;
    changed.model = &wrong;
    right(changed, task);
  };
}

TEST(Mutations, AgainstTheReference) {
  EXPECT_EQ(ReferenceProblems([](Bodies&) {}), std::vector<std::string>());
  EXPECT_FALSE(ReferenceProblems(TransposeC).empty());
  EXPECT_FALSE(ReferenceProblems(PostWithoutFactor).empty());
  EXPECT_FALSE(ReferenceProblems(WorstExperts).empty());
  EXPECT_FALSE(ReferenceProblems(NoTail).empty());
  EXPECT_FALSE(ReferenceProblems(UnboundedGate).empty());
}

// Turns the sign of everything that tasks of one op leave in the workspace.
void Negate(Bodies& bodies, Op op) {
  After(bodies, op, [](const Step& step, const Task& task) {
    for (const Region& region : task.writes) {
      const Buffer& buffer = step.program->buffer(region.buffer);
      for (std::int64_t row = region.row0; row < region.row1 && !buffer.state; ++row) {
        for (std::int64_t i = region.column0; i < region.column1; ++i) {
          if (buffer.element == Element::kBF16) {
            step.workspace->row<bf16>(region.buffer, row)[i].bits ^= 0x8000;
          } else if (buffer.element == Element::kF32) {
            step.workspace->row<float>(region.buffer, row)[i] *= -1;
          }
        }
      }
    }
  });
}

TEST(Mutations, TheReferenceNamesTheTask) {
  for (const Op op :
       {Op::kMixIn, Op::kKdaIn, Op::kKda, Op::kKdaOut, Op::kDsaIn, Op::kQuery, Op::kValues,
        Op::kDsaOut, Op::kDenseUp, Op::kDenseDown, Op::kRouter, Op::kSharedUp, Op::kSharedDown,
        Op::kExpertUp, Op::kExpertDown, Op::kEnd, Op::kHead}) {
    const std::vector<std::string> problems =
        ReferenceProblems([op](Bodies& bodies) { Negate(bodies, op); }, 4);
    const std::string name = OpName(op);
    const bool named = std::any_of(problems.begin(), problems.end(), [&](const std::string& text) {
      const std::size_t at = text.find("first wrong in task \"L");
      const std::size_t found = at == std::string::npos ? at : text.find(" " + name, at + 23);
      return found != std::string::npos &&
             (text[found + name.size() + 1] == ' ' || text[found + name.size() + 1] == '"');
    });
    EXPECT_TRUE(named) << name << ": " << (problems.empty() ? "no problem" : problems.back());
  }
}

// ---- check 3: a second executor names the first task that differs ----

TEST(Mutations, ShadowNamesTheTask) {
  const auto right = MakeCpuExecutor({.threads = 2, .order_seed = 3});
  const auto wrong = Changed(TransposeC);
  State state(TinyModel().config, {.slots = 1, .rows_per_request = 2, .tokens = 64});
  Runner runner(TinyModel(), state, *right);
  Checker clean(runner, *right), dirty(runner, *wrong);
  runner.Run(ProgramKind::kTrunk, 2, {{state.Create(), 2, 0, {}}}, {5, 6});
  clean.Check(CheckMode::kShadow, *right);
  EXPECT_TRUE(clean.findings().problems.empty());
  dirty.Check(CheckMode::kShadow, *right);
  ASSERT_EQ(dirty.findings().problems.size(), 1u);
  EXPECT_NE(dirty.findings().problems[0].find("first in task \"L0 mix_in row 0\""),
            std::string::npos)
      << dirty.findings().problems[0];
}

// ---- check 3b: verify rows again, one by one ----

std::vector<std::string> UnrollProblems(const Change& change, int rows) {
  const auto changed = Changed(change);
  State state(TinyModel().config, {.slots = 2, .rows_per_request = 4, .tokens = 64});
  Runner runner(TinyModel(), state, *changed);
  Checker checker(runner, *changed);
  runner.Run(ProgramKind::kTrunk, rows, {{state.Create(), rows, 0, {}}},
             std::vector<std::int32_t>(static_cast<std::size_t>(rows), 5));
  checker.Check(CheckMode::kUnroll, *changed);
  return checker.findings().problems;
}

// A hidden state whose last bit depends on the rows of the step; the logits are read before.
void HiddenByRows(Bodies& bodies) {
  After(bodies, Op::kHead, [](const Step& step, const Task& task) {
    if (step.program->rows() == 1 || task.n1 < step.config().vocab) return;
    step.workspace->row<bf16>(Buf::kHidden, 0)->bits ^= 1;
  });
}

// Memory that was not cleared: other bits the first time.
void FirstUseDiffers(Bodies& bodies) {
  After(bodies, Op::kEnd,
        [used = std::make_shared<bool>(false)](const Step& step, const Task& task) {
          if (!std::exchange(*used, true))
            step.workspace->row<bf16>(Buf::kHidden, task.row)->bits ^= 1;
        });
}

TEST(Mutations, UnrolledRows) {
  for (const int rows : {1, 4}) {
    EXPECT_EQ(UnrollProblems([](Bodies&) {}, rows), std::vector<std::string>());
    EXPECT_FALSE(UnrollProblems(FirstUseDiffers, rows).empty()) << rows;
  }
  EXPECT_FALSE(UnrollProblems(SplitKByRows, 4).empty());
  EXPECT_FALSE(UnrollProblems(HiddenByRows, 4).empty());
}

// ---- check 4: state after commit ----

// Whether a request's bytes after verify and `commit` are those of decoding `accepted` rows.
bool CommitIsDecode(CommitMode mode, int accepted,
                    const std::function<void(State&, int slot, int accepted)>& commit) {
  const auto executor = MakeCpuExecutor({});
  State state(TinyModel().config,
              {.slots = 3, .rows_per_request = kRows, .commit = mode, .tokens = 512});
  Runner runner(TinyModel(), state, *executor);
  const int slot = state.Create();
  Grow(runner, slot, 1, 18);
  const int decoded = state.Fork(slot);
  Decode(runner, decoded, 1, accepted);
  std::vector<std::int32_t> tokens;
  for (int r = 0; r < kRows; ++r) tokens.push_back(TokenAt(1, 18 + r));
  runner.Run(ProgramKind::kTrunk, kRows, {{slot, kRows, 18, {}}}, tokens);
  commit(state, slot, accepted);
  return state.Fingerprint(slot, false) == state.Fingerprint(decoded, false);
}

TEST(Mutations, Commit) {
  const auto right = [](State& state, int slot, int accepted) { state.Commit(slot, accepted); };
  const auto next_row = [](State& state, int slot, int accepted) {  // slot a instead of a - 1
    state.Commit(slot, accepted + 1);
    state.SetLength(slot, state.length(slot) - 1);
  };
  const auto old_window = [](State& state, int slot, int accepted) {  // window not committed
    std::vector<bf16> window;
    const std::int64_t channels = 3 * TinyModel().config.kda_channels();
    for (int age = 0; age < kConvWidth - 1; ++age) {
      const bf16* entry = state.WindowEntry(0, slot, age);
      window.insert(window.end(), entry, entry + channels);
    }
    state.Commit(slot, accepted);
    state.Flush(slot);
    for (int age = 0; age < kConvWidth - 1; ++age) {
      std::copy_n(window.begin() + age * channels, channels,
                  const_cast<bf16*>(state.WindowEntry(0, slot, age)));
    }
  };
  const auto length_only = [](State& state, int slot, int accepted) {
    state.SetLength(slot, state.length(slot) + accepted);
  };
  for (const CommitMode mode : {CommitMode::kReplay, CommitMode::kScratch}) {
    for (int accepted = 1; accepted < kRows; ++accepted) {
      EXPECT_TRUE(CommitIsDecode(mode, accepted, right));
      EXPECT_FALSE(CommitIsDecode(mode, accepted, next_row));
      EXPECT_FALSE(CommitIsDecode(mode, accepted, old_window));
      EXPECT_FALSE(CommitIsDecode(mode, accepted, length_only));
    }
  }
}

// Snapshots inside the accepted rows: the state after `rows` of them, not one more.
TEST(Mutations, SnapshotRow) {
  for (const CommitMode mode : {CommitMode::kReplay, CommitMode::kScratch}) {
    for (const int off : {0, 1}) {
      const auto fork = [&](State& state, int slot, int accepted) {
        const int copy = state.Fork(slot, accepted + off);
        state.SetLength(copy, 18 + accepted);
        const std::uint64_t print = state.Fingerprint(copy, false);
        state.Free(copy);
        state.Commit(slot, accepted);
        EXPECT_EQ(print == state.Fingerprint(slot, false), off == 0);
      };
      for (int accepted = 1; accepted < kRows; ++accepted) {
        EXPECT_TRUE(CommitIsDecode(mode, accepted, fork));
      }
    }
  }
}

bool Refuses(Executor& executor, const Step& step) {
  try {
    executor.Run(step);
  } catch (const Error&) {
    return true;
  }
  return false;
}

// A ring of 4 loses the open tail to rejected rows. Steps refuse it; run task by task it is seen.
TEST(Mutations, NarrowRing) {
  const auto executor = MakeCpuExecutor({});
  for (const int width : {RingWidth(kRows), kPoolTokens}) {
    State state(TinyModel().config,
                {.slots = 2, .rows_per_request = kRows, .tokens = 512, .ring_width = width});
    Runner runner(TinyModel(), state, *executor);
    const int slot = state.Create();
    Decode(runner, slot, 1, 18);
    const std::uint64_t before = state.Fingerprint(slot, false);
    Program program = BuildProgram(TinyModel().config, {.rows_per_request = kRows, .context = 256});
    Workspace workspace(program);
    Step step{&TinyModel(),    &program, &state, &workspace, nullptr, {{slot, kRows, 18, {}}},
              {1, 2, 3, 4, 5}, {}};
    state.Reserve(slot, kRows);
    EXPECT_EQ(Refuses(*executor, step), width < RingWidth(kRows));
    for (const Task& task : program.tasks) executor->RunTask(step, task);
    EXPECT_EQ(state.Fingerprint(slot, false) == before, width == RingWidth(kRows));
  }
}

// ---- check 5: total orders ----

// All scores equal: the lowest pool ids are the best ones.
bool TiesGoToLowerIds(const Body& select) {
  State state(TinyModel().config, {.tokens = 128});
  Program program = BuildProgram(TinyModel().config, {.context = 128});
  Workspace workspace(program);
  Step step{&TinyModel(), &program, &state, &workspace, nullptr, {{0, 1, 95, {}}}, {1}, {}};
  Task task;
  task.row = 0, task.request = 0;
  select(step, task);
  const SelectedTokens selected = Selected(step, 0);
  return *selected.pool_count == 4 && selected.pools[0] == 0 && selected.pools[3] == 3;
}

TEST(Mutations, TieOrder) {
  EXPECT_TRUE(TiesGoToLowerIds(Select));
  EXPECT_FALSE(TiesGoToLowerIds([](const Step& step, const Task& task) {
    float* scores = step.workspace->row<float>(Buf::kScores, task.row);
    for (int pool = 0; pool < 24; ++pool) scores[pool] = static_cast<float>(pool) * 1e-30f;
    Select(step, task);
  }));
}

// Experts are summed by ascending id: 2^-10 + 2^14 - 2^14 is 0 in that order, and 2^-10 in another.
bool ExpertsAreSummedAscending(const Body& route) {
  Program program = BuildProgram(TinyModel().config, {.context = 64});
  Workspace workspace(program);
  Step step{&TinyModel(), &program, nullptr, &workspace, nullptr, {{0, 1, 0, {}}}, {1}, {}};
  float* logits = workspace.row<float>(Buf::kRouterLogits);
  std::fill(logits, logits + TinyModel().config.experts, -9.0f);
  logits[1] = 1, logits[4] = 3, logits[7] = 2;
  Task task;
  task.layer = 1;
  route(step, task);
  const RouteTable routes = Routes(step);
  for (int slot = 0; slot < *routes.count; ++slot) {
    const std::int32_t expert = routes.experts[slot];
    const float value = expert == 1 ? 0x1p-10f : expert == 4 ? 0x1p14f : -0x1p14f;
    *workspace.row<bf16>(Buf::kExpertOut, slot) = ToBF16(value);
  }
  std::fill_n(workspace.row<float>(Buf::kRouteWeights), 3, 1.0f);
  *workspace.row<float>(Buf::kHyper) = 1;  // post_0; everything else is zero
  task.op = Op::kMix;
  task.layer = 2, task.row = 0, task.request = 0, task.n1 = kMixSlice;
  Mix(step, task);
  return ToFloat(*workspace.row<bf16>(Buf::kStreams)) == 0;
}

TEST(Mutations, ExpertOrder) {
  EXPECT_TRUE(ExpertsAreSummedAscending(Route));
  EXPECT_FALSE(ExpertsAreSummedAscending([](const Step& step, const Task& task) {
    Route(step, task);
    std::reverse(Routes(step).slots, Routes(step).slots + 3);  // in the order of arrival
  }));
}

// ---- check 6: drafting ----

// The next cycle drafts from the last row of the step, padding included.
void SeedFromPadding(Bodies& bodies) {
  After(bodies, Op::kMtpResidual, [](const Step& step, const Task& task) {
    const int last = (task.request + 1) * step.rows_per_request() - 1;
    if (task.part != 2 || last == task.row || step.live(last)) return;
    const bf16* padding = step.workspace->row<bf16>(Buf::kHidden, last);
    std::copy(padding, padding + step.config().hidden,
              step.workspace->row<bf16>(Buf::kHidden, task.row));
  });
}

double MeanAccepted(const Change& change) {
  const auto executor = Changed(change);
  State state(TinyModel().config, {.slots = 1, .rows_per_request = 4, .tokens = 512});
  Dispatcher dispatcher(TinyModel(), state, *executor, *executor, {});
  Generator generator(TinyModel(), state, dispatcher, {.drafts = 3, .max_new = 120});
  generator.Add(SyntheticPrompt(TinyModel().config, 1, 20), 1);
  while (generator.Cycle()) {
  }
  return StatsOf({&generator.result(0)}, 3).mean_over_cycles;
}

TEST(Mutations, DraftSeedFromPadding) {
  const double right = MeanAccepted([](Bodies&) {});
  EXPECT_GT(right, 2.5);
  EXPECT_LT(MeanAccepted(SeedFromPadding), right - 0.3);
}

// Compares a draft with the target of its own row instead of the row before.
TEST(Mutations, AcceptRule) {
  std::vector<float> rows[3] = {std::vector<float>(8, 0.0f), std::vector<float>(8, 0.0f),
                                std::vector<float>(8, 0.0f)};
  rows[0][3] = rows[1][5] = rows[2][6] = 1;  // targets 3 5 6
  AcceptInput input;
  for (const auto& row : rows) input.logits.emplace_back(row);
  const auto accept = [&](std::vector<std::int32_t> drafts) {
    input.drafts = std::move(drafts);
    return Accept(input);
  };
  EXPECT_EQ(accept({3, 5}), (std::vector<std::int32_t>{3, 5, 6}));
  EXPECT_EQ(accept({3, 4}), (std::vector<std::int32_t>{3, 5}));
  EXPECT_EQ(accept({5, 6}), (std::vector<std::int32_t>{3})) << "d_j against y_j would accept both";
  EXPECT_EQ(accept({4, 5}), (std::vector<std::int32_t>{3})) << "acceptance is a prefix";
}

}  // namespace
}  // namespace assay::engine
