// Deliberately wrong kernels that verification must reject. Most are the right kernel with wrong
// arguments; mistakes inside the softmax are plain loops and spoil the last head only.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/parallel.h"
#include "ops/noncausal_dense_attention/spec.h"

namespace assay::noncausal_dense_attention {
namespace {

using Change = void (*)(cpu::Attention&);

// The right kernel, called with what `change` makes of its arguments.
Mutant Changed(const char* name, const char* mistake, Change change) {
  return {name, mistake, [change](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
            cpu::Attention kernel = KernelArguments(Bind(problem, inputs, outputs));
            change(kernel);
            cpu::Run(kernel, 0);
          }};
}

// The right result, spoiled afterwards.
using Spoil = void (*)(const Args&);
Mutant Spoiled(const char* name, const char* mistake, Spoil spoil) {
  return {name, mistake, [spoil](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
            const Args args = Bind(problem, inputs, outputs);
            RunCpu(args, 0);
            spoil(args);
          }};
}

bf16 kZeroRow[128] = {};

// `count` keys with score 0 and value 0 after the real ones.
void AppendZeroKeys(cpu::Attention& kernel, std::int64_t count) {
  kernel.keys[1] = {count, kZeroRow, {}, kZeroRow, {}};
  kernel.mask.visible = nullptr;  // would end before the new keys
}

void DropLastTile(cpu::Attention& kernel) {
  std::int64_t& count = kernel.keys[0].count;
  count = count > 128 ? (count - 1) / 128 * 128 : count / 2;
}

void UnmaskedTail(cpu::Attention& kernel) {
  const std::int64_t count = kernel.keys[0].count;
  AppendZeroKeys(kernel, (count / 176 + 1) * 176 - count);
}

void PairHeads(cpu::Attention& kernel) {
  // Two queries' heads share a key head: every second K and V head is skipped.
  kernel.heads /= 2;
  kernel.q_strides.head *= 2;
  kernel.o_strides.head *= 2;
  cpu::Run(kernel, 0);
  const std::int64_t dim = kernel.head_dim;
  kernel.q += dim;
  kernel.o += dim;
}

void SwapFirstHeads(const Args& args) {
  for (std::int64_t token = 0; token < args.b * args.nq; ++token) {
    bf16* row = args.o + token * args.o_strides.token;
    std::swap_ranges(row, row + args.d, row + args.d);
  }
}

void CopyLastRow(const Args& args) {
  if (args.nq < 2) return;
  for (std::int64_t b = 0; b < args.b; ++b) {
    bf16* last = args.o + b * args.o_strides.batch + (args.nq - 1) * args.o_strides.token;
    std::copy_n(last - args.o_strides.token, args.h * args.d, last);
  }
}

void Multiply(const Args& args, float factor) {
  const std::int64_t elements = args.b * args.nq * args.h * args.d;
  for (std::int64_t i = 0; i < elements; ++i) args.o[i] = ToBF16(ToFloat(args.o[i]) * factor);
}

// Two halves of the keys, combined without their weights.
void AverageHalves(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  cpu::Attention kernel = KernelArguments(Bind(problem, inputs, outputs));
  cpu::AttentionKeys& keys = kernel.keys[0];
  const std::int64_t half = keys.count / 2, rest = keys.count - half;
  kernel.mask.visible = nullptr;
  keys.count = half;
  cpu::Run(kernel, 0);
  Tensor& o = outputs["O"];
  const std::vector<bf16> first(o.as<bf16>(), o.as<bf16>() + o.elements());
  keys.k += half * keys.k_strides.token;
  keys.v += half * keys.v_strides.token;
  keys.count = rest;
  cpu::Run(kernel, 0);
  for (std::int64_t i = 0; i < o.elements(); ++i) {
    bf16& x = o.as<bf16>()[i];
    x = ToBF16(0.5f * (ToFloat(first[static_cast<std::size_t>(i)]) + ToFloat(x)));
  }
}

enum class SoftmaxMistake { kNoRescale, kSumOfLastBlock, kScoresInBF16 };

// One output row by a plain online softmax over at least three key blocks with a mistake in it.
void WrongRow(const Args& args, SoftmaxMistake mistake, const bf16* q, const bf16* k, const bf16* v,
              bf16* o) {
  const std::int64_t block = std::clamp<std::int64_t>(args.nk / 3, 1, 128);
  const float scale = 1 / std::sqrt(static_cast<float>(args.d));
  float largest = -std::numeric_limits<float>::infinity(), sum = 0;
  std::vector<float> acc(static_cast<std::size_t>(args.d)), s(static_cast<std::size_t>(block));
  for (std::int64_t first = 0; first < args.nk; first += block) {
    const std::int64_t count = std::min(args.nk - first, block);
    float new_largest = largest;
    for (std::int64_t j = 0; j < count; ++j) {
      float dot = 0;
      for (std::int64_t d = 0; d < args.d; ++d) {
        dot += ToFloat(q[d]) * ToFloat(k[(first + j) * args.k_strides.token + d]);
      }
      dot *= scale;
      if (mistake == SoftmaxMistake::kScoresInBF16) dot = ToFloat(ToBF16(dot));
      s[static_cast<std::size_t>(j)] = dot;
      new_largest = std::max(new_largest, dot);
    }
    const float rescale = std::exp(largest - new_largest);
    largest = new_largest;
    sum = mistake == SoftmaxMistake::kSumOfLastBlock ? 0 : sum * rescale;
    for (float& x : acc) x *= mistake == SoftmaxMistake::kNoRescale && first > 0 ? 1 : rescale;
    for (std::int64_t j = 0; j < count; ++j) {
      const float p = std::exp(s[static_cast<std::size_t>(j)] - largest);
      sum += p;
      for (std::int64_t d = 0; d < args.d; ++d) {
        acc[static_cast<std::size_t>(d)] += p * ToFloat(v[(first + j) * args.v_strides.token + d]);
      }
    }
  }
  for (std::int64_t d = 0; d < args.d; ++d) o[d] = ToBF16(acc[static_cast<std::size_t>(d)] / sum);
}

template <SoftmaxMistake kMistake>
void SpoilLastHead(const Args& args) {
  ParallelFor(args.b * args.nq, 0, [&](std::int64_t index) {
    const std::int64_t b = index / args.nq, query = index % args.nq, head = args.h - 1;
    WrongRow(args, kMistake,
             args.q + b * args.q_strides.batch + query * args.q_strides.token + head * args.d,
             args.k + b * args.k_strides.batch + head * args.d,
             args.v + b * args.v_strides.batch + head * args.d,
             args.o + b * args.o_strides.batch + query * args.o_strides.token + head * args.d);
  });
}

std::vector<Mutant> ArgumentMutants() {
  return {
      Changed("last_key_dropped", "the key loop ends one key early",
              [](cpu::Attention& kernel) { --kernel.keys[0].count; }),
      Changed("last_tile_dropped", "keys after the last full tile are skipped", DropLastTile),
      Changed("extra_zero_key", "one key with score 0 and value 0 too many",
              [](cpu::Attention& kernel) { AppendZeroKeys(kernel, 1); }),
      Changed("tail_tile_unmasked", "padding of the last 176-key tile counts as keys of score 0",
              UnmaskedTail),
      Changed("scale_one", "scores are not scaled by 1/sqrt(D)",
              [](cpu::Attention& kernel) { kernel.scale = 1; }),
      Changed("scale_off_by_one_percent", "scale is 1.01/sqrt(D)",
              [](cpu::Attention& kernel) { kernel.scale *= 1.01f; }),
      Changed("key_heads_paired", "odd query heads use the K and V of the wrong head", PairHeads),
      Changed("values_of_next_token",
              "V is read one token late (the last key reads the first value)",
              [](cpu::Attention& kernel) {
                cpu::AttentionKeys& keys = kernel.keys[0];
                keys.count -= 1;
                keys.v += keys.v_strides.token;
              }),
  };
}

}  // namespace

std::vector<Mutant> Mutants() {
  std::vector<Mutant> mutants = ArgumentMutants();
  mutants.push_back(
      Spoiled("zeros", "the output is all zeros", [](const Args& args) { Multiply(args, 0); }));
  mutants.push_back(Spoiled("one_percent_large", "the output is 1.01 times the truth",
                            [](const Args& args) { Multiply(args, 1.01f); }));
  mutants.push_back(Spoiled("heads_swapped", "output heads 0 and 1 are exchanged", SwapFirstHeads));
  mutants.push_back(
      Spoiled("last_row_stale", "the last query row repeats the one before", CopyLastRow));
  mutants.push_back({"split_without_weights",
                     "two halves of the keys are averaged instead of combined by their sums",
                     AverageHalves});
  mutants.push_back(Spoiled("no_rescale", "last head: sums are not rescaled when the maximum grows",
                            SpoilLastHead<SoftmaxMistake::kNoRescale>));
  mutants.push_back(Spoiled("sum_of_last_block", "last head: divides by the last key block's sum",
                            SpoilLastHead<SoftmaxMistake::kSumOfLastBlock>));
  mutants.push_back(Spoiled("scores_in_bf16", "last head: scores are rounded to bf16",
                            SpoilLastHead<SoftmaxMistake::kScoresInBF16>));
  return mutants;
}

}  // namespace assay::noncausal_dense_attention
