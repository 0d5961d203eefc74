// Deliberately wrong kernels that verification must reject: the right kernel with wrong arguments,
// or the right output spoiled.
#include <algorithm>
#include <utility>

#include "ops/prefix_cached_block_causal/spec.h"

namespace assay::prefix_cached_block_causal {
namespace {

// What a mutant may change before the kernel runs. `extra` is storage for keys it makes up.
struct Call {
  const Args& args;
  cpu::Attention kernel;
  std::vector<std::int64_t> limits;
  std::vector<bf16> extra_k, extra_v;
};

using Change = void (*)(Call&);

Mutant Changed(const char* name, const char* mistake, Change change,
               bool (*applies)(const Problem&) = nullptr) {
  return {name, mistake,
          [change](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
            const Args args = Bind(problem, inputs, outputs);
            Call call{args, {}, Limits(args.segments), {}, {}};
            call.kernel = KernelArguments(args, call.limits);
            change(call);
            if (!call.limits.empty()) call.kernel.limits = call.limits.data();
            cpu::Run(call.kernel, 0);
          },
          applies};
}

using Spoil = void (*)(const Args&);
Mutant Spoiled(const char* name, const char* mistake, Spoil spoil) {
  return {name, mistake, [spoil](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
            const Args args = Bind(problem, inputs, outputs);
            RunCpu(args, 0);
            spoil(args);
          }};
}

bool HasPrefix(const Problem& problem) { return problem.axis("Np") > 0; }
bool HasSegments(const Problem& problem) { return !IsPrefixForm(problem); }

std::vector<Segment> ImagesOf(const Problem& problem) {
  if (IsPrefixForm(problem)) return {};
  std::vector<Segment> images = AttributeSegments(problem, problem.axis("Nq"));
  std::erase_if(images, [](const Segment& s) { return !s.is_image || s.end - s.start < 2; });
  return images;
}
bool HasImage(const Problem& problem) { return !ImagesOf(problem).empty(); }
bool HasTokensAfterImage(const Problem& problem) {
  return HasImage(problem) && ImagesOf(problem).front().end < problem.axis("Nq");
}

// A private copy of the prefix with `repeats` copies of it and `zeros` keys of score and value 0.
void RebuildPrefix(Call& call, std::int64_t repeats, std::int64_t zeros) {
  const Args& a = call.args;
  const std::int64_t inner = a.h * a.d, tokens = a.np * repeats + zeros;
  for (const auto& [from, to] :
       {std::pair{a.k_prefix, &call.extra_k}, {a.v_prefix, &call.extra_v}}) {
    to->assign(static_cast<std::size_t>(a.b * tokens * inner), bf16{});
    for (std::int64_t b = 0; b < a.b; ++b) {
      for (std::int64_t r = 0; r < repeats; ++r) {
        std::copy_n(from + b * a.np * inner, a.np * inner,
                    to->data() + (b * tokens + r * a.np) * inner);
      }
    }
  }
  const auto strides = cpu::AttentionStrides::Contiguous(tokens, a.h, a.d);
  call.kernel.keys[0] = {tokens, call.extra_k.data(), strides, call.extra_v.data(), strides};
}

// New limits for all rows of image blocks.
template <class Limit>
void ChangeImageLimits(Call& call, const Limit& limit) {
  for (const Segment& segment : call.args.segments) {
    for (std::int64_t i = segment.start; segment.is_image && i < segment.end; ++i) {
      call.limits[static_cast<std::size_t>(i)] = std::min(limit(segment, i), call.args.nq);
    }
  }
}

std::vector<Mutant> PrefixMutants() {
  return {
      Changed(
          "prefix_omitted", "the cached prefix is not attended to",
          [](Call& call) { call.kernel.keys[0].count = 0; }, HasPrefix),
      Changed(
          "prefix_twice", "the cached prefix is counted twice",
          [](Call& call) { RebuildPrefix(call, 2, 0); }, HasPrefix),
      Changed(
          "prefix_key_dropped", "the last prefix key is left out",
          [](Call& call) { --call.kernel.keys[0].count; }, HasPrefix),
      Changed(
          "gap_unmasked", "padding between prefix and suffix counts as keys of score 0",
          [](Call& call) { RebuildPrefix(call, 1, 8 - call.args.np % 8); }, HasPrefix),
      Changed(
          "prefix_of_next_head", "prefix K and V are read one head too far",
          [](Call& call) {
            cpu::AttentionKeys& prefix = call.kernel.keys[0];
            prefix.k += call.args.d * (call.args.np > 0 ? 1 : 0);
            prefix.v += call.args.d * (call.args.np > 0 ? 1 : 0);
            // The last head of the last token would read past the end: one key fewer.
            --prefix.count;
          },
          HasPrefix),
      Changed(
          "suffix_causal", "target tokens see only earlier target tokens",
          [](Call& call) {
            for (std::int64_t i = 0; i < call.args.nq; ++i) {
              call.limits.push_back(call.args.np + i + 1);
            }
          },
          HasPrefix),
  };
}

std::vector<Mutant> SegmentMutants() {
  return {
      Changed(
          "not_causal", "every row sees every key",
          [](Call& call) { std::fill(call.limits.begin(), call.limits.end(), call.args.nq); },
          HasSegments),
      Changed(
          "text_sees_next", "text rows see one key too many",
          [](Call& call) {
            for (std::int64_t& limit : call.limits) limit = std::min(limit + 1, call.args.nq);
          },
          HasSegments),
      Changed(
          "limits_rounded_to_tiles", "rows see keys up to the end of their tile of 16",
          [](Call& call) {
            for (std::int64_t& limit : call.limits) {
              limit = std::min((limit + 15) / 16 * 16, call.args.nq);
            }
          },
          HasSegments),
      Changed(
          "own_key_hidden", "text rows do not see their own key",
          [](Call& call) {
            for (std::int64_t& limit : call.limits) --limit;
          },
          HasSegments),
      Changed(
          "causal_in_image", "the causal mask applies inside image blocks too",
          [](Call& call) {
            ChangeImageLimits(call, [](const Segment&, std::int64_t i) { return i + 1; });
          },
          HasImage),
      Changed(
          "image_block_short", "image rows do not see the last key of their block",
          [](Call& call) {
            ChangeImageLimits(call, [](const Segment& s, std::int64_t) { return s.end - 1; });
          },
          HasImage),
      Changed(
          "image_sees_later_text", "image rows see text after their block",
          [](Call& call) {
            ChangeImageLimits(call, [](const Segment& s, std::int64_t) { return s.end + 21; });
          },
          HasTokensAfterImage),
  };
}

void SwapFirstHeads(const Args& args) {
  for (std::int64_t token = 0; token < args.b * args.nq; ++token) {
    bf16* row = args.o + token * args.o_strides.token;
    std::swap_ranges(row, row + args.d, row + args.d);
  }
}

void CopyLastRow(const Args& args) {
  for (std::int64_t b = 0; b < args.b && args.nq > 1; ++b) {
    bf16* last = args.o + b * args.o_strides.batch + (args.nq - 1) * args.o_strides.token;
    std::copy_n(last - args.o_strides.token, args.h * args.d, last);
  }
}

void ScaleByOnePercent(const Args& args) {
  for (std::int64_t i = 0; i < args.b * args.nq * args.h * args.d; ++i) {
    args.o[i] = ToBF16(ToFloat(args.o[i]) * 1.01f);
  }
}

}  // namespace

std::vector<Mutant> Mutants() {
  std::vector<Mutant> mutants = PrefixMutants();
  for (Mutant& mutant : SegmentMutants()) mutants.push_back(std::move(mutant));
  mutants.push_back(Changed("scale_one", "scores are not scaled by 1/sqrt(128)",
                            [](Call& call) { call.kernel.scale = 1; }));
  mutants.push_back(Changed("scale_off_by_one_percent", "scale is 1.01/sqrt(128)",
                            [](Call& call) { call.kernel.scale *= 1.01f; }));
  mutants.push_back(Changed(
      "last_key_dropped", "the last suffix key is left out",
      [](Call& call) { --call.kernel.keys[1].count; }, IsPrefixForm));
  mutants.push_back(Spoiled("heads_swapped", "output heads 0 and 1 are exchanged", SwapFirstHeads));
  mutants.push_back(
      Spoiled("last_row_stale", "the last query row repeats the one before", CopyLastRow));
  mutants.push_back(
      Spoiled("one_percent_large", "the output is 1.01 times the truth", ScaleByOnePercent));
  return mutants;
}

}  // namespace assay::prefix_cached_block_causal
