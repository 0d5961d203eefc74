// What engine tests share: the tiny model, and rows of a request run one way or another.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "engine/runner.h"
#include "engine/synthetic.h"

namespace assay::engine {

inline const Model& TinyModel() {
  static const Model model = MakeSyntheticModel(PresetConfig("tiny"), {.seed = 1, .plant = 5.0});
  return model;
}

// Tokens that requests of tests see: any, but the same for the same (seed, position).
inline std::int32_t TokenAt(std::uint64_t seed, std::int64_t position) {
  static const std::vector<std::int32_t> pool = SyntheticPrompt(TinyModel().config, 5, 4096);
  return pool[static_cast<std::size_t>((position * 7 + static_cast<std::int64_t>(seed) * 131) %
                                       4096)];
}

// What one row produced, as bytes.
struct RowResult {
  std::vector<std::byte> bytes;
  friend bool operator==(const RowResult&, const RowResult&) = default;
};

inline RowResult ResultOf(const StepOutput& output, int row) {
  RowResult result;
  const auto add = [&](std::span<const std::byte> bytes) {
    result.bytes.insert(result.bytes.end(), bytes.begin(), bytes.end());
  };
  add(std::as_bytes(output.logits(row)));
  add(std::as_bytes(output.hidden(row)));
  for (const std::int32_t pool : output.pools(row)) add(std::as_bytes(std::span(&pool, 1)));
  return result;
}

// Runs tokens of `seed` at the positions after the committed ones, one row per step, all committed.
inline std::vector<RowResult> Decode(Runner& runner, int slot, std::uint64_t seed, int rows) {
  std::vector<RowResult> results;
  for (int i = 0; i < rows; ++i) {
    const std::int64_t position = runner.state().length(slot);
    const StepOutput output =
        runner.Run(ProgramKind::kTrunk, 1, {{slot, 1, position, {}}}, {TokenAt(seed, position)});
    results.push_back(ResultOf(output, 0));
    runner.state().Commit(slot, 1);
  }
  return results;
}

// Grows a request to `length` tokens with steps of 8 rows.
inline void Grow(Runner& runner, int slot, std::uint64_t seed, std::int64_t length) {
  const int most = std::min(8, runner.state().options().rows_per_request);
  while (runner.state().length(slot) < length) {
    const std::int64_t start = runner.state().length(slot);
    const int rows = static_cast<int>(std::min<std::int64_t>(most, length - start));
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < most; ++i) tokens.push_back(TokenAt(seed, start + i));
    runner.Run(ProgramKind::kTrunk, most, {{slot, rows, start, {}}}, tokens);
    runner.state().Commit(slot, rows);
  }
}

}  // namespace assay::engine
