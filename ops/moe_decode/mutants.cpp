// Wrong kernels that verification must reject: the right one on changed arguments, or with a
// decoder that makes a mistake.
#include <algorithm>
#include <cmath>

#include "ops/moe_decode/spec.h"

namespace assay::moe_decode {
namespace {

// A call whose small arguments are copies that may be changed.
struct Draft {
  Args args;
  std::vector<bf16> x;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;

  void Decode(void (*decode)(const Matrix&, std::int64_t, std::int64_t, float*)) {
    args.gate.decode = args.up.decode = args.down.decode = decode;
  }
};

Mutant Make(const char* name, const char* mistake, void (*change)(Draft&),
            bool (*applies)(const Problem&) = nullptr) {
  return {name, mistake,
          [change](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
            Draft draft{Bind(problem, inputs, outputs), {}, {}, {}};
            Args& args = draft.args;
            draft.x.assign(args.x, args.x + args.m * args.hidden);
            draft.ids.assign(args.ids, args.ids + args.m * args.top_k);
            draft.weights.assign(args.weights, args.weights + args.m * args.top_k);
            args.x = draft.x.data();
            args.ids = draft.ids.data();
            args.weights = draft.weights.data();
            change(draft);
            RunCpu(args, 0);
          },
          applies};
}

bool HasTwoRows(const Problem& problem) { return problem.axis("M") > 1; }
bool IsNVFP4(const Problem& problem) { return FormatOf(problem) == Format::kNVFP4; }
bool RowsDiffer(const Problem& problem) {
  return HasTwoRows(problem) && problem.variant != "same_experts";
}

// --- decoders ---

void InverseScales(const Matrix& w, std::int64_t expert, std::int64_t row, float* out) {
  const std::int64_t columns = w.k / kBlock;
  const float* blocks = w.blocks + (expert * (w.n / kBlock) + row / kBlock) * columns;
  DecodeFP8(w, expert, row, out);
  for (std::int64_t k = 0; k < w.k; ++k) out[k] /= blocks[k / kBlock] * blocks[k / kBlock];
}

void FirstBlockForAll(const Matrix& w, std::int64_t expert, std::int64_t row, float* out) {
  const std::int64_t columns = w.k / kBlock;
  const float* blocks = w.blocks + (expert * (w.n / kBlock) + row / kBlock) * columns;
  DecodeFP8(w, expert, row, out);
  for (std::int64_t k = 0; k < w.k; ++k) out[k] *= blocks[0] / blocks[k / kBlock];
}

void BlocksOfFirstRows(const Matrix& w, std::int64_t expert, std::int64_t row, float* out) {
  const std::int64_t columns = w.k / kBlock;
  const float* blocks = w.blocks + expert * (w.n / kBlock) * columns;
  DecodeFP8(w, expert, row, out);
  for (std::int64_t k = 0; k < w.k; ++k) {
    out[k] *= blocks[k / kBlock] / blocks[row / kBlock * columns + k / kBlock];
  }
}

void NibblesSwapped(const Matrix& w, std::int64_t expert, std::int64_t row, float* out) {
  DecodeFP4(w, expert, row, out);
  std::swap_ranges(out, out + w.k / 2, out + w.k / 2);
}

// 4-bit codes as two's complement integers.
void CodesAsIntegers(const Matrix& w, std::int64_t expert, std::int64_t row, float* out) {
  DecodeFP4(w, expert, row, out);
  for (std::int64_t k = 0; k < w.k; ++k) {
    const unsigned pair = w.codes[((expert * w.n + row) * w.k + k) / 2];
    const unsigned code = k % 2 == 0 ? pair & 15u : pair >> 4;
    float& value = out[k / 2 + k % 2 * (w.k / 2)];
    const float right = E2M1ToFloat(code);
    if (right != 0) value *= static_cast<float>(code < 8 ? code : code - 16.0) / right;
  }
}

// Scales of the group before: those of the last one for the first.
void GroupsShifted(const Matrix& w, std::int64_t expert, std::int64_t row, float* out) {
  const std::int64_t columns = w.k / ScaleGroup(w.format);
  std::vector<std::uint8_t> groups(w.groups + (expert * w.n + row) * columns,
                                   w.groups + (expert * w.n + row + 1) * columns);
  std::rotate(groups.begin(), groups.end() - 1, groups.end());
  Matrix changed = w;
  changed.groups = groups.data() - (expert * w.n + row) * columns;
  DecodeFP4(changed, expert, row, out);
}

// The scale bytes of one 4-bit format read as those of the other.
void OtherScaleFormat(const Matrix& w, std::int64_t expert, std::int64_t row, float* out) {
  const std::int64_t group = ScaleGroup(w.format), columns = w.k / group;
  const std::uint8_t* groups = w.groups + (expert * w.n + row) * columns;
  DecodeFP4(w, expert, row, out);
  for (std::int64_t k = 0; k < w.k; ++k) {
    const std::uint8_t byte = groups[k / group];
    const float as_e4m3 = ToFloat(e4m3{byte}), as_ue8m0 = ToFloat(ue8m0{byte});
    out[k / 2 + k % 2 * (w.k / 2)] *=
        w.format == Format::kNVFP4 ? as_ue8m0 / as_e4m3 : as_e4m3 / as_ue8m0;
  }
}

void WithoutLastGroup(const Matrix& w, std::int64_t expert, std::int64_t row, float* out) {
  if (FourBits(w.format)) {
    DecodeFP4(w, expert, row, out);
    const std::int64_t half = ScaleGroup(w.format) / 2;
    std::fill_n(out + w.k / 2 - half, half, 0.0f);
    std::fill_n(out + w.k - half, half, 0.0f);
  } else {
    DecodeFP8(w, expert, row, out);
    std::fill_n(out + w.k - 16, 16, 0.0f);
  }
}

std::vector<Mutant> SharedMutants() {
  return {
      Make("shared_omitted", "leaves the shared expert out",
           [](Draft& d) { d.args.shared = false; }),
      Make("clamp_omitted", "does not clamp gate and up", [](Draft& d) { d.args.limit = 1e30f; }),
      Make("gate_up_swapped", "takes up for gate",
           [](Draft& d) { std::swap(d.args.gate, d.args.up); }),
      Make("last_expert_dropped", "adds all chosen experts but the last",
           [](Draft& d) {
             for (std::size_t i = 0; i < d.weights.size(); ++i) {
               if ((i + 1) % static_cast<std::size_t>(d.args.top_k) == 0) d.weights[i] = 0;
             }
           }),
      Make(
          "weights_not_sorted_along", "sorts the experts of a row, and not their weights",
          [](Draft& d) {
            for (auto at = d.ids.begin(); at != d.ids.end(); at += d.args.top_k) {
              std::sort(at, at + d.args.top_k);
            }
          },
          [](const Problem& problem) { return problem.axis("K") > 2; }),
      Make("equal_weights", "adds all experts with the same weight",
           [](Draft& d) {
             std::fill(d.weights.begin(), d.weights.end(), 2.5f / static_cast<float>(d.args.top_k));
           }),
      Make("neighbour_expert", "takes the weights of the expert behind",
           [](Draft& d) {
             for (std::int32_t& id : d.ids) {
               id = static_cast<std::int32_t>((id + 1) % d.args.experts);
             }
           }),
      Make(
          "rows_rotated", "gives every row the experts of the next one",
          [](Draft& d) { std::rotate(d.ids.begin(), d.ids.begin() + d.args.top_k, d.ids.end()); },
          RowsDiffer),
      Make(
          "inputs_rotated", "gives every row the input of the next one",
          [](Draft& d) { std::rotate(d.x.begin(), d.x.begin() + d.args.hidden, d.x.end()); },
          HasTwoRows),
      Make("activations_e4m3", "rounds the rows to e4m3 first",
           [](Draft& d) {
             for (bf16& x : d.x) x = ToBF16(ToFloat(ToE4M3(ToFloat(x))));
           }),
      Make("last_group_dropped", "the last group along k is not read",
           [](Draft& d) { d.Decode(WithoutLastGroup); }),
  };
}

std::vector<Mutant> W8Mutants() {
  return {
      Make("inverse_scales", "divides by weight_scale_inv, as its name suggests",
           [](Draft& d) { d.Decode(InverseScales); }),
      Make("first_block_for_all", "uses the first scale of a row of blocks for the whole row",
           [](Draft& d) { d.Decode(FirstBlockForAll); }),
      Make("blocks_of_first_rows", "uses the scales of rows 0 .. 127 for all rows",
           [](Draft& d) { d.Decode(BlocksOfFirstRows); }),
  };
}

std::vector<Mutant> W4Mutants() {
  return {
      Make("nibbles_swapped", "takes the high nibble for even k",
           [](Draft& d) { d.Decode(NibblesSwapped); }),
      Make("codes_as_integers", "decodes codes as two's complement integers",
           [](Draft& d) { d.Decode(CodesAsIntegers); }),
      Make("groups_shifted", "uses the scale of the group before",
           [](Draft& d) { d.Decode(GroupsShifted); }),
      Make("other_scale_format", "reads ue8m0 scales as e4m3, or e4m3 ones as ue8m0",
           [](Draft& d) { d.Decode(OtherScaleFormat); }),
      Make(
          "global_scale_omitted", "leaves out the scale of the matrix",
          [](Draft& d) { d.args.gate.global = d.args.up.global = d.args.down.global = nullptr; },
          IsNVFP4),
  };
}

}  // namespace

std::vector<Mutant> Mutants(bool four_bits) {
  std::vector<Mutant> mutants = SharedMutants();
  for (Mutant& mutant : four_bits ? W4Mutants() : W8Mutants()) mutants.push_back(std::move(mutant));
  return mutants;
}

}  // namespace assay::moe_decode
