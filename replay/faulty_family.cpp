#include "replay/faulty_family.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/random.h"

namespace assay {
namespace {

using namespace std::chrono_literals;

std::int64_t N(const Problem& problem) { return problem.axis("N"); }

void Sum(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  const float* a = inputs["a"].as<float>();
  const float* b = inputs["b"].as<float>();
  float* sum = outputs["sum"].as<float>();
  for (std::int64_t i = 0; i < N(problem); ++i) sum[i] = a[i] + b[i];
}

void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  for (std::uint64_t t = 0; t < 2; ++t) {
    float* x = inputs.tensors()[t].as<float>();
    for (std::int64_t i = 0; i < N(problem); ++i) {
      x[i] = UnitNormal(key, t, static_cast<std::uint64_t>(i));
    }
  }
}

std::vector<ExpectedRows> Reference(const Problem&, const Bundle& inputs, const RowLists& rows,
                                    SumOrder) {
  ExpectedRows expected;
  for (std::int64_t i : rows[0]) {
    expected.value.push_back(static_cast<double>(inputs["a"].as<float>()[i]) +
                             static_cast<double>(inputs["b"].as<float>()[i]));
  }
  return {expected};
}

RowLists AllRows(const Problem& problem, const Bundle&, std::uint64_t) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < N(problem); ++i) rows.push_back(i);
  return {rows};
}

Backend Make(const std::string& name, void (*run)(const Problem&, const Bundle&, Bundle&)) {
  return {name, "test backend", [](const Problem&, const Bundle&) { return std::string(); },
          [run](const Problem& problem, const Bundle& inputs, Bundle& outputs, const RunContext&) {
            run(problem, inputs, outputs);
          }};
}

void HangForever(const Problem&, const Bundle&, Bundle&) {
  signal(SIGTERM, SIG_IGN);  // even a deaf worker must go
  for (;;) std::this_thread::sleep_for(1s);
}

// Right on the first call of a process, wrong from the fifth on.
void WrongLater(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  static int calls = 0;
  Sum(problem, inputs, outputs);
  if (++calls > 4) outputs["sum"].as<float>()[0] += 1;
}

void WrongOnTheThirdCall(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  static int calls = 0;
  Sum(problem, inputs, outputs);
  if (++calls == 3) outputs["sum"].as<float>()[N(problem) / 2] += 1;
}

// Copies the result it computed when it first saw this input address.
void CachesByPointer(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  static std::vector<float> first;
  Tensor& sum = outputs["sum"];
  if (first.empty()) {
    Sum(problem, inputs, outputs);
    first.assign(sum.as<float>(), sum.as<float>() + sum.elements());
  }
  std::memcpy(sum.data, first.data(), sum.bytes());
}

// Computes once per output buffer and then relies on what it left there.
void SkipsRepeats(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  static std::map<const void*, bool> seen;
  if (seen[outputs["sum"].data]) return;
  seen[outputs["sum"].data] = true;
  Sum(problem, inputs, outputs);
}

// Right on the contents that it was checked on and on wholly different ones, lazy on those that are
// almost the former: what a timing loop with versions of known contents looks like.
void SkipsVersions(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  static std::vector<std::vector<float>> known;
  const float* a = inputs["a"].as<float>();
  const std::vector<float> now(a, a + std::min<std::int64_t>(N(problem), 16));
  const auto near = [&](const std::vector<float>& old) {
    return std::equal(now.begin(), now.end(), old.begin(),
                      [](float x, float y) { return std::abs(x - y) < 1e-5f; });
  };
  const auto old = std::find_if(known.begin(), known.end(), near);
  const bool version = old != known.end() && *old != now;
  if (old == known.end()) known.push_back(now);
  Sum(problem, inputs, outputs);
  if (version) std::fill_n(outputs["sum"].as<float>(), N(problem), 0.0f);
}

// Spoils its inputs and dies; or spoils those of a content that is unlike the first four, which are
// the checked ones and the version that is judged.
void SpoilsInputsAndDies(const Problem&, const Bundle& inputs, Bundle&) {
  const_cast<Bundle&>(inputs)["a"].as<float>()[0] = 7;
  _exit(9);
}

void SpoilsNewInputs(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  static std::vector<float> known;
  float* a = const_cast<Bundle&>(inputs)["a"].as<float>();
  Sum(problem, inputs, outputs);
  const bool near = std::any_of(known.begin(), known.end(),
                                [&](float old) { return std::abs(old - a[0]) < 1e-5f; });
  if (near) return;
  if (known.size() < 3) return known.push_back(a[0]);
  a[1] += 1;
}

void DiesWhileTimed(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  static int calls = 0;
  if (++calls > 7) _exit(9);
  Sum(problem, inputs, outputs);
}

// The bits of one fp32 addition per element.
BitwiseOrder OneAddition() {
  return {"a + b, rounded once", [](const Problem&, const Bundle& inputs, std::size_t,
                                    const std::vector<std::int64_t>& elements) {
            std::vector<std::uint64_t> bits;
            for (std::int64_t i : elements) {
              const float sum = inputs["a"].as<float>()[i] + inputs["b"].as<float>()[i];
              bits.push_back(std::bit_cast<std::uint32_t>(sum));
            }
            return bits;
          }};
}

// Documents that order, but is off by the last bit of one element: inside every tolerance.
void LastBitOff(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Sum(problem, inputs, outputs);
  float& last = outputs["sum"].as<float>()[N(problem) - 1];
  last = std::bit_cast<float>(std::bit_cast<std::uint32_t>(last) ^ 1u);
}

std::vector<Backend> Backends() {
  std::vector<Backend> all = {
      Make("good", Sum),
      Make("segfault",
           [](const Problem&, const Bundle&, Bundle&) {
             signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would exit instead
             raise(SIGSEGV);
           }),
      Make("exits", [](const Problem&, const Bundle&, Bundle&) { _exit(0); }),
      Make("hangs", HangForever),
      Make("throws",
           [](const Problem&, const Bundle&, Bundle&) { throw std::runtime_error("no luck"); }),
      Make("out_of_memory", [](const Problem&, const Bundle&, Bundle&) { throw std::bad_alloc(); }),
      Make("writes_nothing", [](const Problem&, const Bundle&, Bundle&) {}),
      Make("skips_last",
           [](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
             const float last = outputs["sum"].as<float>()[N(problem) - 1];
             Sum(problem, inputs, outputs);
             outputs["sum"].as<float>()[N(problem) - 1] = last;
           }),
      Make("writes_behind",
           [](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
             Sum(problem, inputs, outputs);
             outputs["sum"].as<float>()[N(problem)] = 0;
           }),
      Make("writes_before",
           [](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
             Sum(problem, inputs, outputs);
             outputs["sum"].as<float>()[-1] = 0;
           }),
      Make("modifies_input",
           [](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
             Sum(problem, inputs, outputs);
             const_cast<Bundle&>(inputs)["a"].as<float>()[0] = 7;
           }),
      Make("moves_output",
           [](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
             static std::vector<float> own(1 << 20);
             outputs["sum"].data = reinterpret_cast<std::byte*>(own.data());
             Sum(problem, inputs, outputs);
           }),
      Make("wrong_later", WrongLater),
      Make("wrong_on_third_call", WrongOnTheThirdCall),
      Make("caches_by_pointer", CachesByPointer),
      Make("skips_versions", SkipsVersions),
      Make("dies_while_timed", DiesWhileTimed),
      Make("spoils_inputs_and_dies", SpoilsInputsAndDies),
      Make("spoils_new_inputs", SpoilsNewInputs),
      Make("skips_repeats", SkipsRepeats),
      Make("prints",
           [](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
             std::puts("{\"status\": \"ok\"} noise on stdout");
             std::fputs("noise on stderr\n", stderr);
             Sum(problem, inputs, outputs);
           }),
      Make("slow",
           [](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
             std::this_thread::sleep_for(400ms);
             Sum(problem, inputs, outputs);
           }),
  };
  Backend picky = Make("picky", Sum);
  picky.supports = [](const Problem&, const Bundle&) { return "only on Sundays"; };
  all.push_back(picky);
  all.push_back(Make("documented", Sum));
  all.push_back(Make("last_bit_off", LastBitOff));
  all[all.size() - 2].bitwise = all.back().bitwise = OneAddition();
  return all;
}

}  // namespace

Family MakeFaultyFamily() {
  Family family;
  family.name = "faulty_sum";
  family.summary = "sum of two vectors, with every fault";
  family.definitions = {{"faulty_sum", {}, {"N"}}};
  family.inputs = {{"a", DType::kF32, {"N"}}, {"b", DType::kF32, {"N"}}};
  family.outputs = {{"sum", DType::kF32, {"N"}}};
  family.input_layouts = [](const Problem& problem) {
    return std::vector<TensorLayout>{{"a", DType::kF32, {N(problem)}},
                                     {"b", DType::kF32, {N(problem)}}};
  };
  family.validate_axes = [](const Problem& problem) {
    if (N(problem) == 13) BadInput("faulty_sum: axis N = 13 is unlucky");
  };
  family.generate = Generate;
  family.cost = [](const Problem& problem, const Bundle&) {
    return Cost{static_cast<double>(N(problem)), 12.0 * static_cast<double>(N(problem)), 0};
  };
  family.sample_rows = AllRows;
  family.reference = Reference;
  family.policies = [](const Problem&) {
    OutputPolicy policy;
    policy.grades = {{"captured", 2e-5, 1e-4, 0, 0}};
    return std::vector<OutputPolicy>{policy};
  };
  family.backends = Backends();
  for (Backend& backend : FaultyDeviceBackends()) family.backends.push_back(std::move(backend));
  return family;
}

const Registry& FaultyRegistry() {
  static const Registry registry({MakeFaultyFamily()});
  return registry;
}

}  // namespace assay
