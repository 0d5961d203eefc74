// The truth of mixed_mla_decode in fp64, decoded from the bytes by the formulas of README.md.
#include <cstddef>

#include "ops/mixed_mla_decode/spec.h"
#include "ops/mla/rows.h"

namespace assay::mixed_mla_decode {
namespace {

// e4m3(data[t, d]) * 2^(scale[t, d / 32] - 127) of a page of 256 tokens.
double Value8(const std::uint8_t* page, std::int64_t t, std::int64_t d) {
  const std::uint8_t code = page[t * 512 + d];
  const std::uint8_t scale = page[256 * 512 + t * 16 + d / 32];
  return static_cast<double>(ToFloat(e4m3{code})) * ToFloat(ue8m0{scale});
}

// e2m1(nibble d) * e4m3(scale[t, d / 16]) of a page of 128 tokens; even dims are low nibbles.
double Value4(const std::uint8_t* page, std::int64_t t, std::int64_t d) {
  const unsigned byte = page[t * 256 + d / 2];
  const unsigned code = d % 2 == 0 ? byte & 15u : byte >> 4;
  const std::uint8_t scale = page[128 * 256 + t * 32 + d / 16];
  return static_cast<double>(E2M1ToFloat(code)) * ToFloat(e4m3{scale});
}

// All occurrences, as [list, 512].
std::vector<double> Keys(const Args& args, std::int64_t b) {
  std::vector<double> keys;
  const std::int64_t used8 = args.window.length != nullptr ? args.window.length[b] : 128;
  const std::int64_t used4 = args.extra.length != nullptr ? args.extra.length[b] : 512;
  for (std::int64_t j = 0; j < used8; ++j) {
    const std::int64_t index = args.window.indices[b * 128 + j];
    if (index < 0) continue;
    const std::uint8_t* page = args.cache8.bytes + index / 256 * args.cache8.page_stride;
    for (std::int64_t d = 0; d < kDim; ++d) keys.push_back(Value8(page, index % 256, d));
  }
  for (std::int64_t j = 0; j < used4; ++j) {
    const std::int64_t index = args.extra.indices[b * 512 + j];
    if (index < 0) continue;
    const std::uint8_t* page = args.cache4.bytes + index / 128 * args.cache4.page_stride;
    for (std::int64_t d = 0; d < kDim; ++d) keys.push_back(Value4(page, index % 128, d));
  }
  return keys;
}

}  // namespace

std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order) {
  const Args args = BindInputs(problem, inputs);
  return {mla::ReferenceRows(rows[0], order, [&](std::int64_t row) {
    mla::TokenHeads token;
    token.q = args.q + row * kHeads * kDim;
    token.keys = Keys(args, row);
    token.scale = static_cast<double>(args.sm_scale);
    token.sink = args.attn_sink;
    return token;
  })};
}

}  // namespace assay::mixed_mla_decode
