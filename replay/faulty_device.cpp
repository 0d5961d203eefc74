// The faulty family's backends on a simulated GPU: what a device worker must survive and name.
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "cuda/notes.h"
#include "replay/fake_accelerator.h"
#include "replay/faulty_family.h"

namespace assay {
namespace {

using namespace std::chrono_literals;

constexpr double kWarmNs = 2000, kColdNs = 3000;

// Views of one content set, by value: a call outlives the request that prepared it.
struct Arrays {
  std::int64_t n = 0;
  const float* a = nullptr;
  const float* b = nullptr;
  float* sum = nullptr;
};

void Sum(const Arrays& arrays) {
  for (std::int64_t i = 0; i < arrays.n; ++i) arrays.sum[i] = arrays.a[i] + arrays.b[i];
}

// `enqueue` is the DeviceCall for given arrays.
Backend Make(const std::string& name, void (*enqueue)(Stream, const Arrays&)) {
  Backend backend;
  backend.name = name;
  backend.summary = "test backend on a simulated GPU";
  backend.device = "cuda";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.prepare = [enqueue](const Problem& problem, const Bundle&, const Bundle& inputs,
                              Bundle& outputs) -> DeviceCall {
    AddNote("computes sums of " + std::to_string(problem.axis("N")) + " elements");
    const Arrays arrays{problem.axis("N"), inputs["a"].as<float>(), inputs["b"].as<float>(),
                        outputs["sum"].as<float>()};
    return [arrays, enqueue](Stream stream) { enqueue(stream, arrays); };
  };
  return backend;
}

void Good(Stream stream, const Arrays& arrays) {
  FakeAccelerator::Of(stream).Launch(kWarmNs, kColdNs, [arrays] { Sum(arrays); });
}

void WritesBehind(Stream stream, const Arrays& arrays) {
  FakeAccelerator::Of(stream).Launch(kWarmNs, kColdNs, [arrays] {
    Sum(arrays);
    arrays.sum[arrays.n] = 0;
  });
}

void ModifiesInput(Stream stream, const Arrays& arrays) {
  FakeAccelerator::Of(stream).Launch(kWarmNs, kColdNs, [arrays] {
    Sum(arrays);
    const_cast<float*>(arrays.a)[0] = 7;
  });
}

void IllegalAddress(Stream stream, const Arrays&) {
  FakeAccelerator::Of(stream).Launch(kWarmNs, kColdNs, [stream] {
    FakeAccelerator::Of(stream).Break(
        "work on the device: an illegal memory access was encountered");
  });
}

void LeavesSideStream(Stream stream, const Arrays& arrays) {
  Good(stream, arrays);
  FakeAccelerator::Of(stream).LeaveUnjoined();
}

void EnqueuesNothing(Stream stream, const Arrays& arrays) {
  FakeAccelerator::Of(stream).LaunchElsewhere([arrays] { Sum(arrays); });
}

// Something on the given stream, the real work beside it: the graph does not hold it.
void WorksElsewhere(Stream stream, const Arrays& arrays) {
  FakeAccelerator::Of(stream).Launch(kWarmNs, kColdNs, [] {});
  FakeAccelerator::Of(stream).LaunchElsewhere([arrays] { Sum(arrays); });
}

// Skips the work when it has seen these outputs before, however often.
void SkipsRepeats(Stream stream, const Arrays& arrays) {
  FakeAccelerator::Of(stream).Launch(kWarmNs, kColdNs, [arrays] {
    static std::map<const float*, int> calls;
    if (++calls[arrays.sum] <= 4) Sum(arrays);
  });
}

// Remembers results by input address, from call to call.
void CachesByPointer(Stream stream, const Arrays& arrays) {
  FakeAccelerator::Of(stream).Launch(kWarmNs, kColdNs, [arrays] {
    static std::map<const float*, std::vector<float>> known;
    std::vector<float>& kept = known[arrays.a];
    if (kept.empty()) {
      Sum(arrays);
      kept.assign(arrays.sum, arrays.sum + arrays.n);
    }
    std::copy(kept.begin(), kept.end(), arrays.sum);
  });
}

// Keeps the results of all content that it ever met and finds them again by content. What it
// computes costs `kComputeNs` more than what it has kept.
constexpr double kComputeNs = 60e3;
void KeepsResults(Stream stream, const Arrays& arrays) {
  FakeAccelerator& gpu = FakeAccelerator::Of(stream);
  gpu.Launch(kWarmNs, kColdNs, [arrays, &gpu] {
    static std::map<std::vector<float>, std::vector<float>> known;
    std::vector<float> key(arrays.a, arrays.a + arrays.n);
    key.insert(key.end(), arrays.b, arrays.b + arrays.n);
    std::vector<float>& kept = known[key];
    if (kept.empty()) {
      gpu.Spend(kComputeNs);
      Sum(arrays);
      kept.assign(arrays.sum, arrays.sum + arrays.n);
    }
    std::copy(kept.begin(), kept.end(), arrays.sum);
  });
}

// Honest in the first two calls of every plan, which are the ones that are checked. Later ones, in
// timed graphs, know the results of checked contents and do nothing on others.
void KnowsTheChecks(Stream stream, const Arrays& arrays) {
  static std::map<std::vector<float>, std::vector<float>> known;
  static std::map<const float*, int> calls;
  const bool checked = ++calls[arrays.sum] <= 2;
  FakeAccelerator::Of(stream).Launch(kWarmNs, kColdNs, [arrays, checked] {
    const std::vector<float> key(arrays.a, arrays.a + arrays.n);
    if (checked) {
      Sum(arrays);
      known[key].assign(arrays.sum, arrays.sum + arrays.n);
    } else if (const auto kept = known.find(key); kept != known.end()) {
      std::copy(kept->second.begin(), kept->second.end(), arrays.sum);
    }
  });
}

void PinsLines(Stream stream, const Arrays& arrays) {
  FakeAccelerator::Of(stream).PinLines();
  Good(stream, arrays);
}

void Hangs(Stream, const Arrays&) {
  for (;;) std::this_thread::sleep_for(1s);
}

void OutOfMemory(Stream stream, const Arrays&) {
  FakeAccelerator& gpu = FakeAccelerator::Of(stream);
  gpu.memory_limit = 0;
  gpu.Allocate(4096);
}

}  // namespace

std::vector<Backend> FaultyDeviceBackends() {
  std::vector<Backend> all = {
      Make("gpu_good", Good),
      Make("gpu_writes_behind", WritesBehind),
      Make("gpu_modifies_input", ModifiesInput),
      Make("gpu_illegal_address", IllegalAddress),
      Make("gpu_leaves_side_stream", LeavesSideStream),
      Make("gpu_enqueues_nothing", EnqueuesNothing),
      Make("gpu_works_elsewhere", WorksElsewhere),
      Make("gpu_skips_repeats", SkipsRepeats),
      Make("gpu_caches_by_pointer", CachesByPointer),
      Make("gpu_keeps_results", KeepsResults),
      Make("gpu_knows_the_checks", KnowsTheChecks),
      Make("gpu_pins_lines", PinsLines),
      Make("gpu_hangs", Hangs),
      Make("gpu_out_of_memory", OutOfMemory),
  };
  Backend plans_by_content = Make("gpu_plans_by_content", Good);
  plans_by_content.prepare = [](const Problem& problem, const Bundle& host, const Bundle&,
                                Bundle& outputs) -> DeviceCall {
    std::vector<float> kept(static_cast<std::size_t>(problem.axis("N")));
    Sum({problem.axis("N"), host["a"].as<float>(), host["b"].as<float>(), kept.data()});
    float* const sum = outputs["sum"].as<float>();
    return [kept, sum](Stream stream) {
      FakeAccelerator::Of(stream).Launch(
          kWarmNs, kColdNs, [&kept, sum] { std::copy(kept.begin(), kept.end(), sum); });
    };
  };
  all.push_back(plans_by_content);
  return all;
}

}  // namespace assay
