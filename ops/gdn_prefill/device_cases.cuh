// Cases of this room's GPU tests, and what they compare.
#pragma once

#include <limits>
#include <numeric>

#include "ops/gdn_prefill/spec.h"
#include "replay/device_room_test.cuh"

namespace assay::gdn_prefill {

inline constexpr std::int64_t kSequenceElements = kValueHeads * kStateElements;
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Of the captured workloads: tokens and sequences.
inline constexpr std::int64_t kCapturedSizes[][2] = {
    {6, 1},   {61, 1},   {525, 1}, {2107, 1}, {35, 2},    {341, 2},  {983, 2},
    {255, 3}, {1800, 3}, {959, 4}, {3028, 5}, {4124, 15}, {8192, 57}};

inline const Family& TheFamily() {
  static const Family family = MakeFamily();
  return family;
}

inline TestCase MakeCase(std::int64_t tokens, std::int64_t sequences,
                         const std::string& variant = "default",
                         const Attributes& attributes = {}) {
  return MakeTestCase(
      TheFamily(), "gdn_prefill_qk4_v8_d128_k_last",
      {{"total_seq_len", tokens}, {"num_seqs", sequences}, {"len_cu_seqlens", sequences + 1}}, 29,
      variant, attributes);
}

// A case with the given lengths instead of a generated partition.
inline TestCase MakeCaseOf(const std::vector<std::int64_t>& lengths,
                           const std::string& variant = "all_continued") {
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  TestCase test = MakeCase(tokens, static_cast<std::int64_t>(lengths.size()), variant);
  std::int64_t* cu_seqlens = test.inputs["cu_seqlens"].as<std::int64_t>();
  std::partial_sum(lengths.begin(), lengths.end(), cu_seqlens + 1);
  return test;
}

// A NaN in the middle of token `token` of an input of `tokens` tokens.
inline void SetNaN(Tensor& tensor, std::int64_t token, std::int64_t tokens) {
  const std::int64_t of_token = tensor.elements() / tokens;
  tensor.as<bf16>()[token * of_token + of_token / 2] = ToBF16(kNaN);
}

// One sequence: `tokens` tokens of `args` from `begin` on, states as they are there.
inline Args TokensOf(Args args, std::int64_t begin, std::int64_t tokens) {
  args.sequences = 1;
  args.tokens = tokens;
  args.q += begin * kKeyHeads * kHeadSize;
  args.k += begin * kKeyHeads * kHeadSize;
  args.v += begin * kValueHeads * kHeadSize;
  args.a += begin * kValueHeads;
  args.b += begin * kValueHeads;
  args.output += begin * kValueHeads * kHeadSize;
  return args;
}

// A sequence of a batch as a call of its own.
inline Args SequenceOf(Args args, std::int64_t sequence, std::int64_t begin, std::int64_t tokens) {
  args.state += sequence * kSequenceElements;
  args.new_state += sequence * kSequenceElements;
  return TokensOf(args, begin, tokens);
}

struct Bits {
  std::vector<std::byte> output, new_state;
  friend bool operator==(const Bits&, const Bits&) = default;
};

inline Bits BitsOf(const TestCase& test) {
  const auto copy = [](const Tensor& tensor) {
    return std::vector<std::byte>(tensor.data, tensor.data + tensor.bytes());
  };
  return {copy(test.outputs["output"]), copy(test.outputs["new_state"])};
}

inline bool StateIsKept(const TestCase& test, const Bits& bits) {
  return std::memcmp(bits.new_state.data(), test.inputs["state"].data, bits.new_state.size()) == 0;
}

}  // namespace assay::gdn_prefill
