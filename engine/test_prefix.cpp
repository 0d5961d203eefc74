// Prefix reuse: what is reused is what would have been computed, byte for byte.
#include "base/error.h"
#include "engine/generate.h"
#include "engine/test_support.h"

namespace assay::engine {
namespace {

using Tokens = std::vector<std::int32_t>;

struct Engine {
  State state;
  std::unique_ptr<Executor> executor;
  Dispatcher dispatcher;
  Generator generator;

  explicit Engine(const GenerateOptions& options, CommitMode commit = CommitMode::kReplay,
                  std::int64_t tokens = 4096, int slots = 8)
      : state(TinyModel().config, {.slots = slots,
                                   .rows_per_request = options.drafts + 1,
                                   .commit = commit,
                                   .tokens = tokens}),
        executor(MakeCpuExecutor({})),
        dispatcher(TinyModel(), state, *executor, *executor, {}),
        generator(TinyModel(), state, dispatcher, options) {}

  int Run(const Tokens& prompt) {
    const int request = generator.Add(prompt, 1);
    while (generator.Cycle()) state.PoisonUnreadable();
    return request;
  }
  const Tokens& tokens(int request) const { return generator.result(request).tokens; }
  std::uint64_t Fingerprint(int request, bool mtp) {
    return state.Fingerprint(generator.slot(request), mtp);
  }
};

Tokens Prompt(std::int64_t count, std::uint64_t seed = 1) {
  return SyntheticPrompt(TinyModel().config, seed, count);
}

// The first `shared` tokens of one prompt, then those of another.
Tokens Branch(const Tokens& trunk, std::int64_t shared, std::int64_t count) {
  Tokens tokens(trunk.begin(), trunk.begin() + shared);
  const Tokens rest = Prompt(count, 77);
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  return tokens;
}

constexpr PrefixOptions kEvery64{.interval = 64, .snapshots = 4};

TEST(Prefix, ReuseChangesNothing) {
  for (const CommitMode commit : {CommitMode::kReplay, CommitMode::kScratch}) {
    for (const int drafts : {0, 1, 3, 7}) {
      SCOPED_TRACE(std::to_string(drafts) + " drafts, " + CommitModeName(commit));
      const Tokens first = Prompt(150), second = Branch(first, 128, 21);
      Engine reusing({.drafts = drafts, .max_new = 40, .prefix = kEvery64}, commit);
      reusing.Run(first);
      const int reused = reusing.Run(second);
      EXPECT_EQ(reusing.generator.prefixes()->restored, 1);
      EXPECT_EQ(reusing.generator.prefixes()->reused_tokens, 128);
      Engine plain({.drafts = drafts, .max_new = 40}, commit);
      const int computed = plain.Run(second);
      EXPECT_EQ(plain.generator.prefixes(), nullptr);
      EXPECT_EQ(reusing.tokens(reused), plain.tokens(computed));
      EXPECT_EQ(reusing.Fingerprint(reused, drafts > 0), plain.Fingerprint(computed, drafts > 0));
    }
  }
}

// A boundary may be crossed by any row of a verify step (SGLang 37817): all drafts are right, and
// six tokens are accepted at a time from every starting length.
TEST(Prefix, BoundariesInsideAcceptedTokens) {
  constexpr int kDrafts = 5;
  Engine oracle({.max_new = 80});
  for (std::int64_t length = 116; length < 122; ++length) {
    const Tokens prompt = Prompt(length);
    const Tokens right = oracle.tokens(oracle.Run(prompt));
    Engine engine({.drafts = kDrafts, .max_new = 40, .prefix = kEvery64});
    engine.generator.set_draft_source([&](int request, const Tokens& tokens) -> Tokens {
      if (request > 0) return {};
      const auto from = right.begin() + static_cast<std::ptrdiff_t>(tokens.size() - prompt.size());
      return {from, from + kDrafts};
    });
    engine.Run(prompt);
    EXPECT_EQ(engine.generator.result(0).lengths.front(), kDrafts + 1);
    Tokens context = prompt;
    context.insert(context.end(), right.begin(), right.begin() + 30);
    const Tokens branch = Branch(context, 128, 3);
    const int reused = engine.Run(branch);
    EXPECT_EQ(engine.generator.prefixes()->reused_tokens, 128) << length;
    Engine plain({.drafts = kDrafts, .max_new = 40});
    const int computed = plain.Run(branch);
    EXPECT_EQ(engine.tokens(reused), plain.tokens(computed)) << length;
    EXPECT_EQ(engine.Fingerprint(reused, true), plain.Fingerprint(computed, true)) << length;
  }
}

// The row after the boundary instead of the one before it.
TEST(Prefix, ASnapshotOneRowOffIsSeen) {
  const auto executor = MakeCpuExecutor({});
  for (const CommitMode commit : {CommitMode::kReplay, CommitMode::kScratch}) {
    State state(TinyModel().config,
                {.slots = 5, .rows_per_request = 6, .commit = commit, .tokens = 512});
    Runner runner(TinyModel(), state, *executor);
    const int slot = state.Create(), single = state.Create();
    Grow(runner, slot, 1, 60);
    Grow(runner, single, 1, 60);
    std::vector<std::int32_t> tokens;
    for (int r = 0; r < 6; ++r) tokens.push_back(TokenAt(1, 60 + r));
    runner.Run(ProgramKind::kTrunk, 6, {{slot, 6, 60, {}}}, tokens);
    const int right = state.Fork(slot, 4), wrong = state.Fork(slot, 5);
    Decode(runner, single, 1, 4);
    const auto kda_states = [&](int request) {
      std::vector<std::byte> all;
      state.ForEachVisible(request, false, [&](const std::string& part, auto bytes) {
        if (part.starts_with("kda")) all.insert(all.end(), bytes.begin(), bytes.end());
      });
      return all;
    };
    EXPECT_EQ(state.Fingerprint(right, false), state.Fingerprint(single, false));
    EXPECT_NE(kda_states(wrong), kda_states(single));
  }
}

TEST(Prefix, LongestPrefixAndForeignPrompts) {
  Engine engine({.drafts = 2, .max_new = 4, .prefix = kEvery64}, CommitMode::kReplay, 4096, 12);
  const Tokens prompt = Prompt(200);
  engine.Run(prompt);
  EXPECT_EQ(engine.generator.prefixes()->taken, 3);  // 64, 128, 192
  engine.Run(Prompt(100, 9));                        // nothing in common
  EXPECT_EQ(engine.generator.prefixes()->restored, 0);
  engine.Run(Branch(prompt, 70, 5));
  EXPECT_EQ(engine.generator.prefixes()->reused_tokens, 64);
  engine.Run(Tokens(prompt.begin(), prompt.begin() + 128));  // its last token has to run
  EXPECT_EQ(engine.generator.prefixes()->reused_tokens, 64 + 64);
  engine.Run(prompt);
  EXPECT_EQ(engine.generator.prefixes()->reused_tokens, 64 + 64 + 192);
}

// What is not complete must not be had: its MTP rows are missing.
TEST(Prefix, UnpublishedSnapshotsAreRefused) {
  const auto executor = MakeCpuExecutor({});
  State state(TinyModel().config, {.slots = 3, .rows_per_request = 8, .tokens = 512});
  Runner runner(TinyModel(), state, *executor);
  PrefixCache cache(state, kEvery64, 8);
  const int slot = state.Create();
  Grow(runner, slot, 1, 64);
  Tokens tokens;
  for (int i = 0; i < 64; ++i) tokens.push_back(TokenAt(1, i));
  const std::int64_t ticket = cache.Begin(slot, 0, tokens);
  ASSERT_GE(ticket, 0);
  EXPECT_EQ(cache.Begin(slot, 0, tokens), -1) << "is known";
  tokens.push_back(0);
  EXPECT_EQ(cache.Find(tokens), -1);
  EXPECT_THROW(cache.Restore(0), Error);
  cache.Publish(ticket, {});
  EXPECT_EQ(cache.Find(tokens), 0);
  EXPECT_EQ(state.Fingerprint(cache.Restore(0), false), state.Fingerprint(slot, false));
  EXPECT_TRUE(cache.Evict());
  cache.Publish(ticket, {});
  EXPECT_EQ(cache.Find(tokens), -1) << "it was evicted";
}

// Two requests cross a boundary in one cycle, and there is room for one snapshot.
TEST(Prefix, SnapshotsBegunTogetherAreNotMixedUp) {
  Engine engine({.drafts = 3, .max_new = 8, .prefix = {.interval = 64, .snapshots = 1}});
  const Tokens first = Prompt(62, 3), second = Prompt(62, 4);
  engine.generator.Add(first, 1);
  engine.generator.Add(second, 1);
  while (engine.generator.Cycle()) {
  }
  for (const int request : {0, 1}) {
    Tokens context = request == 0 ? first : second;
    context.insert(context.end(), engine.tokens(request).begin(), engine.tokens(request).end());
    const Tokens branch = Branch(context, 64, 9);
    Engine plain({.drafts = 3, .max_new = 8});
    const int reused = engine.Run(branch), computed = plain.Run(branch);
    EXPECT_EQ(engine.Fingerprint(reused, true), plain.Fingerprint(computed, true)) << request;
  }
  EXPECT_GT(engine.generator.prefixes()->evicted, 0);
}

// Requests get slots and pages before snapshots do.
TEST(Prefix, SnapshotsGiveWay) {
  Engine engine({.drafts = 1, .max_new = 8, .prefix = {.interval = 64, .snapshots = 2}},
                CommitMode::kReplay, 512, 4);
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const int request = engine.Run(Prompt(180, seed));
    EXPECT_EQ(engine.tokens(request).size(), 8u);
    engine.generator.Remove(request);
  }
  EXPECT_GT(engine.generator.prefixes()->evicted, 0);
  const int large = engine.Run(Prompt(500, 9));
  EXPECT_EQ(engine.tokens(large).size(), 8u);
}

TEST(Prefix, RefusesIntervals) {
  const auto refused = [](std::int64_t interval, int snapshots, int drafts = 3) {
    EXPECT_THROW(Engine({.drafts = drafts, .prefix = {interval, snapshots}}), Error);
  };
  refused(100, 4);
  refused(-64, 4);
  refused(64, 0);
}

}  // namespace
}  // namespace assay::engine
