// Step programs: legal for every shape, printable, and each class of mistake refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "engine/executor.h"
#include "engine/test_support.h"

namespace assay::engine {
namespace {

using testing::HasSubstr;

Program Verify(int requests = 2, int rows = 3) {
  return BuildProgram(TinyModel().config,
                      {.requests = requests, .rows_per_request = rows, .context = 512});
}

TEST(Program, EveryShapeIsLegal) {
  for (const ProgramKind kind : {ProgramKind::kTrunk, ProgramKind::kMtp, ProgramKind::kMtpChain}) {
    for (const int requests : {1, 2, 4}) {
      for (const int rows : {1, 2, 4}) {
        for (const int workers : {1, 3, 132}) {
          const Program program = BuildProgram(TinyModel().config, {.kind = kind,
                                                                    .requests = requests,
                                                                    .rows_per_request = rows,
                                                                    .context = 2048,
                                                                    .workers = workers});
          EXPECT_EQ(Validate(program), std::vector<std::string>());
        }
      }
    }
  }
}

TEST(Program, LargerModelsHaveLegalProgramsAsWell) {
  const Program program =
      BuildProgram(PresetConfig("small"), {.rows_per_request = 1, .context = 4096, .workers = 132});
  EXPECT_EQ(Validate(program), std::vector<std::string>());
}

TEST(Program, RefusesImpossibleShapes) {
  const ModelConfig& tiny = TinyModel().config;
  EXPECT_THROW(BuildProgram(tiny, {.requests = 0, .context = 64}), Error);
  EXPECT_THROW(BuildProgram(tiny, {.requests = 4, .rows_per_request = 5, .context = 64}), Error);
  EXPECT_THROW(BuildProgram(tiny, {.context = 2 << 20}), Error);
  EXPECT_THROW(BuildProgram(tiny, {.context = 64, .workers = 0}), Error);
  ModelConfig plain = tiny;
  plain.mtp = false;
  EXPECT_THROW(BuildProgram(plain, {.kind = ProgramKind::kMtp, .context = 64}), Error);
}

TEST(Program, HashNamesTheProgram) {
  EXPECT_EQ(ProgramHash(Verify()), ProgramHash(Verify()));
  EXPECT_NE(ProgramHash(Verify()), ProgramHash(Verify(2, 2)));
  Program changed = Verify();
  changed.tasks[40].waits.clear();
  EXPECT_NE(ProgramHash(changed), ProgramHash(Verify()));
}

TEST(Program, PrintsItself) {
  const Program program = Verify();
  EXPECT_THAT(ProgramText(program), HasSubstr("kda_in"));
  EXPECT_THAT(ProgramJson(program), HasSubstr("\"op\":\"index_score\""));
  EXPECT_THAT(ProgramSvg(program), HasSubstr("a DSA layer with experts"));
}

std::size_t FirstTask(const Program& program, Op op) {
  for (std::size_t t = 0; t < program.tasks.size(); ++t) {
    if (program.tasks[t].op == op) return t;
  }
  ADD_FAILURE() << "no task " << OpName(op);
  return 0;
}

// What Validate says first about a program that `spoil` changed.
std::string Complaint(const std::function<void(Program&)>& spoil) {
  Program program = Verify();
  spoil(program);
  const std::vector<std::string> problems = Validate(program);
  return problems.empty() ? "(accepted)" : problems.front();
}

TEST(Validator, NamesEachClassOfMistake) {
  EXPECT_EQ(Complaint([](Program&) {}), "(accepted)");
  EXPECT_THAT(Complaint([](Program& p) { p.tasks[FirstTask(p, Op::kAttend)].waits.clear(); }),
              HasSubstr("without waiting for"));
  EXPECT_THAT(Complaint([](Program& p) { --p.tasks[FirstTask(p, Op::kMixIn)].waits[0].target; }),
              HasSubstr("waits for 1 of 2 signals"));
  EXPECT_THAT(Complaint([](Program& p) { ++p.tasks[FirstTask(p, Op::kMixIn)].waits[0].target; }),
              HasSubstr("waits for 3 of 2 signals"));
  EXPECT_THAT(Complaint([](Program& p) { p.tasks[FirstTask(p, Op::kKda)].signals.clear(); }),
              HasSubstr("signals, and tasks give"));
  EXPECT_THAT(Complaint([](Program& p) { p.tasks[FirstTask(p, Op::kRoute)].signals[0] = 100000; }),
              HasSubstr("names counter 100000"));
  EXPECT_THAT(
      Complaint([](Program& p) { p.tasks[FirstTask(p, Op::kHead)].writes[0].column1 = 258; }),
      HasSubstr("which is 6 x 257"));
  EXPECT_THAT(Complaint([](Program& p) { p.tasks[FirstTask(p, Op::kHead)].writes.clear(); }),
              HasSubstr("writes nothing"));
  EXPECT_THAT(Complaint([](Program& p) { p.tasks[FirstTask(p, Op::kHead)].worker = 1; }),
              HasSubstr("is assigned to worker 1 of 1"));
  EXPECT_THAT(Complaint([](Program& p) { p.tasks[FirstTask(p, Op::kEnd)].row = 6; }),
              HasSubstr("names a row or request"));
  // A cycle: the first task waits for the last stage.
  EXPECT_THAT(
      Complaint([](Program& p) {
        const int last = p.tasks.back().signals[0];
        p.tasks[0].waits.push_back({last, p.counters[static_cast<std::size_t>(last)].signals});
      }),
      HasSubstr("is part of a cycle"));
  // Two tiles of one buffer that overlap.
  EXPECT_THAT(
      Complaint([](Program& p) { p.tasks[FirstTask(p, Op::kDenseDown)].writes[0].column1 += 8; }),
      HasSubstr("which writes it"));
  // A buffer that nobody filled.
  EXPECT_THAT(Complaint([](Program& p) {
                p.tasks[0].reads.push_back({Buf::kLogits, -1, 0, 1, 0, 1});
              }),
              HasSubstr("that no task wrote"));
  // Neighbours exchanged: a worker's list is no linear extension any more.
  EXPECT_THAT(Complaint([](Program& p) {
                std::swap(p.tasks[FirstTask(p, Op::kRouter)], p.tasks[FirstTask(p, Op::kRoute)]);
              }),
              HasSubstr("its list is no legal order"));
}

// Every wait is needed: whichever is dropped, the validator sees a race.
TEST(Validator, SeesEveryDroppedWait) {
  const Program program = BuildProgram(TinyModel().config, {.rows_per_request = 2, .context = 256});
  // One wait is implied by others: the chunk task's wait for its selection covers what it reads.
  int unseen = 0, dropped = 0;
  for (std::size_t t = 0; t < program.tasks.size(); ++t) {
    for (std::size_t w = 0; w < program.tasks[t].waits.size(); ++w) {
      if ((dropped++ % 7) != 0) continue;  // a sample: each check walks the whole program
      Program changed = program;
      changed.tasks[t].waits.erase(changed.tasks[t].waits.begin() + static_cast<std::ptrdiff_t>(w));
      if (!Validate(changed, 1).empty()) continue;
      ++unseen;
      const Op op = program.tasks[t].op;
      EXPECT_TRUE(op == Op::kAttend || op == Op::kSelect)
          << DescribeTask(program, t) << " wait " << w;
    }
  }
  EXPECT_LT(unseen, 6);
}

// The same at run time, found by the happens-before checker in some random order.
TEST(Executor, CheckerSeesADroppedWait) {
  State state(TinyModel().config, {.tokens = 64});
  const int slot = state.Create();
  state.Reserve(slot, 1);
  Program program = BuildProgram(TinyModel().config, {.context = 64});
  program.tasks[FirstTask(program, Op::kKdaOut)].waits.clear();
  Workspace workspace(program);
  Step step{&TinyModel(), &program, &state, &workspace, nullptr, {{slot, 1, 0, {}}}, {7}, {}};
  int caught = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const auto executor = MakeCpuExecutor({.order_seed = seed, .check_order = true});
    try {
      executor->Run(step);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("had finished, and both touch the same bytes"));
      ++caught;
    }
  }
  EXPECT_EQ(caught, 4);
}

TEST(Executor, ReportsAProgramThatBlocks) {
  State state(TinyModel().config, {.tokens = 64});
  const int slot = state.Create();
  state.Reserve(slot, 1);
  Program program = BuildProgram(TinyModel().config, {.context = 64});
  program.tasks[FirstTask(program, Op::kRoute)].signals.clear();
  Workspace workspace(program);
  const Step step{&TinyModel(), &program, &state, &workspace, nullptr, {{slot, 1, 0, {}}}, {7}, {}};
  EXPECT_THROW(MakeCpuExecutor({.threads = 2})->Run(step), Error);
}

// Regions are the truth: a task changes nothing outside its writes, and its outputs do not change
// when everything outside its reads (and writes) is poisoned.
TEST(Executor, TasksTouchWhatTheySay) {
  State state(TinyModel().config, {.rows_per_request = 3, .tokens = 64});
  const auto executor = MakeCpuExecutor({});
  Runner runner(TinyModel(), state, *executor);
  const int slot = state.Create();
  Grow(runner, slot, 1, 19);
  state.Reserve(slot, 3);
  const Program program = BuildProgram(TinyModel().config, {.rows_per_request = 3, .context = 64});
  Workspace real(program), copy(program);
  Step step{&TinyModel(), &program, &state, &real, nullptr, {{slot, 3, 19, {}}}, {7, 8, 9}, {}};
  const auto visit = [&](const std::vector<Region>& regions,
                         const std::function<void(std::byte*, std::byte*, std::size_t)>& use) {
    for (const Region& region : regions) {
      const Buffer& buffer = program.buffer(region.buffer);
      const std::int64_t size = ElementBytes(buffer.element);
      if (size == 0) continue;
      for (std::int64_t row = region.row0; row < region.row1; ++row) {
        const std::int64_t at = (row * buffer.columns + region.column0) * size;
        use(real.data(region.buffer) + at, copy.data(region.buffer) + at,
            static_cast<std::size_t>((region.column1 - region.column0) * size));
      }
    }
  };
  const auto total = static_cast<std::size_t>(real.total_bytes());
  for (std::size_t t = 0; t < program.tasks.size(); ++t) {
    const Task& task = program.tasks[t];
    copy.Poison();
    const auto copy_in = [](std::byte* from, std::byte* to, std::size_t n) {
      std::memcpy(to, from, n);
    };
    visit(task.reads, copy_in);
    visit(task.writes, copy_in);
    std::vector<std::byte> before(real.data(Buf::kStreams), real.data(Buf::kStreams) + total);
    Step poisoned = step;
    poisoned.workspace = &copy;
    ASSERT_TRUE(executor->RunTask(poisoned, task));
    ASSERT_TRUE(executor->RunTask(step, task));
    visit(task.writes, [&](std::byte* a, std::byte* b, std::size_t n) {
      ASSERT_EQ(std::memcmp(a, b, n), 0) << DescribeTask(program, t) << " reads more than it says";
    });
    visit(task.writes, [&](std::byte* a, std::byte*, std::size_t n) {
      std::memcpy(before.data() + (a - real.data(Buf::kStreams)), a, n);
    });
    ASSERT_EQ(std::memcmp(before.data(), real.data(Buf::kStreams), total), 0)
        << DescribeTask(program, t) << " writes more than it says";
  }
}

}  // namespace
}  // namespace assay::engine
