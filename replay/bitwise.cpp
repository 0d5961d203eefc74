#include "replay/bitwise.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/random.h"

namespace assay {
namespace {

// Rounding to bf16 hides most differences of fp32 sums: splitting k = 4096 in two shows in about
// one element of 2,000. So many that this is not missed; 200 million products of the longest
// captured k.
constexpr std::int64_t kElements = 16384;

// Sorted and unique.
std::vector<std::int64_t> SampledElements(const Tensor& tensor, std::uint64_t seed) {
  const std::int64_t count = tensor.elements();
  std::vector<std::int64_t> elements;
  if (count <= kElements) {
    for (std::int64_t i = 0; i < count; ++i) elements.push_back(i);
    return elements;
  }
  const std::int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  elements = {0, row - 1, count - row, count - 1};
  for (std::uint64_t i = elements.size(); i < static_cast<std::uint64_t>(kElements); ++i) {
    const std::uint64_t random = Mix64(seed, kAuxiliaryTensor, i);
    elements.push_back(static_cast<std::int64_t>(random % static_cast<std::uint64_t>(count)));
  }
  std::sort(elements.begin(), elements.end());
  elements.erase(std::unique(elements.begin(), elements.end()), elements.end());
  return elements;
}

std::uint64_t BitsOf(const Tensor& tensor, std::int64_t element) {
  const std::size_t size = DTypeBytes(tensor.dtype, 1);
  std::uint64_t bits = 0;
  std::memcpy(&bits, tensor.data + static_cast<std::size_t>(element) * size, size);
  return bits;
}

std::string IndexText(const Tensor& tensor, std::int64_t element) {
  Shape index(tensor.shape.size());
  for (std::size_t d = index.size(); d-- > 0;) {
    index[d] = element % tensor.shape[d];
    element /= tensor.shape[d];
  }
  return tensor.name + ShapeText(index);
}

std::string Hex(const Tensor& tensor, std::uint64_t bits) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%0*llx", static_cast<int>(2 * DTypeBytes(tensor.dtype, 1)),
                static_cast<unsigned long long>(bits));
  return text;
}

}  // namespace

Finding CheckBitwise(const Family& family, const Backend& backend, const Problem& problem,
                     const Bundle& inputs, const Bundle& outputs, std::uint64_t seed) {
  Finding finding{"bitwise", true, 0, 0, ""};
  std::int64_t compared = 0, different = 0;
  std::string first;
  for (std::size_t o = 0; o < family.outputs.size(); ++o) {
    const Tensor& tensor = outputs[family.outputs[o].name];
    const std::vector<std::int64_t> elements = SampledElements(tensor, seed);
    const std::vector<std::uint64_t> expected =
        backend.bitwise.expected_bits(problem, inputs, o, elements);
    if (expected.size() != elements.size()) {
      throw Error(Fault::kInternal, backend.name + ": expected_bits gave " +
                                        std::to_string(expected.size()) + " values for " +
                                        std::to_string(elements.size()) + " elements");
    }
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const std::uint64_t got = BitsOf(tensor, elements[i]);
      ++compared;
      if (got == expected[i]) continue;
      ++different;
      if (first.empty()) {
        first = IndexText(tensor, elements[i]) + " = " + Hex(tensor, got) + ", expected " +
                Hex(tensor, expected[i]);
      }
    }
  }
  finding.measured = static_cast<double>(different);
  finding.passed = different == 0;
  const std::string of = std::to_string(compared) + " sampled elements";
  finding.detail = finding.passed
                       ? of + " have the bits of: " + backend.bitwise.order
                       : first + "; " + std::to_string(different) + " of " + of +
                             " differ from the documented order (" + backend.bitwise.order + ")";
  return finding;
}

void AddBitwise(const Family& family, const Backend& backend, const Problem& problem,
                const Bundle& inputs, const Bundle& outputs, std::uint64_t seed, Verdict& verdict) {
  if (verdict.status == Status::kInvalidReference || verdict.sub == "shape" ||
      verdict.sub == "dtype") {
    return;
  }
  if (backend.bitwise.expected_bits == nullptr) {
    verdict.flags.push_back("no_bitwise_order");
    return;
  }
  Finding finding = CheckBitwise(family, backend, problem, inputs, outputs, seed);
  if (!finding.passed && verdict.passed()) {
    verdict.status = Status::kIncorrect;
    verdict.sub = "bitwise";
    verdict.reason = "bitwise: " + finding.detail;
  }
  verdict.correctness.findings.push_back(std::move(finding));
}

}  // namespace assay
