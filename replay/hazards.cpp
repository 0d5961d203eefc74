#include "replay/hazards.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/dtype.h"
#include "io/sha256.h"
#include "replay/plugin.h"
#include "replay/runner.h"

namespace assay {
namespace {

using namespace std::chrono_literals;

constexpr int kHeads = 8, kGroup = 2, kSize = 128;

const AssayTensor* Find(const AssayNamedTensor* tensors, std::size_t count, const char* name) {
  for (std::size_t i = 0; i < count; ++i) {
    if (std::strcmp(tensors[i].name, name) == 0) return &tensors[i].tensor;
  }
  return nullptr;
}

template <class T>
T* Input(const AssayCall* call, const char* name) {
  const AssayTensor* tensor = Find(call->inputs, call->input_count, name);
  return tensor == nullptr ? nullptr : static_cast<T*>(tensor->data);
}

template <class T>
T* Output(const AssayCall* call, const char* name) {
  return static_cast<T*>(Find(call->outputs, call->output_count, name)->data);
}

std::size_t Bytes(const AssayTensor& tensor) {
  std::size_t bytes = tensor.dtype.bits / 8;
  for (int d = 0; d < tensor.ndim; ++d) bytes *= static_cast<std::size_t>(tensor.shape[d]);
  return bytes;
}

// One value head of one sequence, straight from the formula (ops/gdn_decode/README.md).
void Head(const AssayCall* call, std::int64_t n, std::int64_t h) {
  const std::int64_t row = n * kHeads + h, key = (n * kHeads / kGroup + h / kGroup) * kSize;
  const bf16* q = Input<bf16>(call, "q") + key;
  const bf16* k = Input<bf16>(call, "k") + key;
  const bf16* v = Input<bf16>(call, "v") + row * kSize;
  const float* state = Input<float>(call, "state");
  float* next = Output<float>(call, "new_state") + row * kSize * kSize;
  const float x = ToFloat(Input<bf16>(call, "a")[row]) + Input<float>(call, "dt_bias")[h];
  const float softplus = x > 20 ? x : std::log1p(std::exp(x));
  const float decay = std::exp(-std::exp(Input<float>(call, "A_log")[h]) * softplus);
  const float beta = 1 / (1 + std::exp(-ToFloat(Input<bf16>(call, "b")[row])));
  const float* given_scale = Input<float>(call, "scale");
  float scale = given_scale != nullptr ? *given_scale : 0;
  if (scale == 0) scale = 1 / std::sqrt(static_cast<float>(kSize));
  for (int i = 0; i < kSize; ++i) {
    float* line = next + i * kSize;
    float kept = 0, sum = 0;
    for (int j = 0; j < kSize; ++j) {
      line[j] = state == nullptr ? 0 : decay * state[row * kSize * kSize + i * kSize + j];
      kept += line[j] * ToFloat(k[j]);
    }
    const float change = beta * (ToFloat(v[i]) - kept);
    for (int j = 0; j < kSize; ++j) {
      line[j] += change * ToFloat(k[j]);
      sum += line[j] * ToFloat(q[j]);
    }
    Output<bf16>(call, "output")[row * kSize + i] = ToBF16(static_cast<double>(scale * sum));
  }
}

int Right(const AssayCall* call) {
  const std::int64_t batch = Find(call->outputs, call->output_count, "output")->shape[0];
  for (std::int64_t n = 0; n < batch; ++n) {
    for (std::int64_t h = 0; h < kHeads; ++h) Head(call, n, h);
  }
  return 0;
}

// Results kept by a key that the kernel believes to be enough.
template <class KeyOf>
int FromMemory(const AssayCall* call, const KeyOf& key_of) {
  static std::map<std::string, std::vector<std::string>> known;
  std::vector<std::string>& kept = known[key_of(call)];
  if (kept.empty()) {
    Right(call);
    for (std::size_t o = 0; o < call->output_count; ++o) {
      const AssayTensor& tensor = call->outputs[o].tensor;
      kept.emplace_back(static_cast<const char*>(tensor.data), Bytes(tensor));
    }
  }
  for (std::size_t o = 0; o < call->output_count; ++o) {
    std::memcpy(call->outputs[o].tensor.data, kept[o].data(), kept[o].size());
  }
  return 0;
}

int ByPointer(const AssayCall* call) {
  return FromMemory(call, [](const AssayCall* c) {
    return std::to_string(reinterpret_cast<std::uintptr_t>(c->inputs[0].tensor.data));
  });
}

int ByShape(const AssayCall* call) {
  return FromMemory(call, [](const AssayCall* c) { return std::string(c->definition); });
}

// Of all input bytes but the bits in `ignored`, a mask of every 16 bits. As slow as computing when
// it does not know the content; 30 ms make that plain.
std::string ContentKeyOf(const AssayCall* call, std::uint16_t ignored) {
  static std::map<std::string, bool> seen;
  std::string key;
  for (std::size_t i = 0; i < call->input_count; ++i) {
    const AssayTensor& tensor = call->inputs[i].tensor;
    std::string bytes(static_cast<const char*>(tensor.data), Bytes(tensor));
    for (std::size_t b = 0; b < bytes.size(); ++b) {
      bytes[b] = static_cast<char>(bytes[b] & ~(ignored >> (b % 2 * 8)));
    }
    key += Sha256Hex(bytes);
  }
  if (!std::exchange(seen[key], true)) std::this_thread::sleep_for(30ms);
  return key;
}

int ByContent(const AssayCall* call) {
  return FromMemory(call, [](const AssayCall* c) { return ContentKeyOf(c, 0); });
}

int ByBlurredContent(const AssayCall* call) {
  return FromMemory(call, [](const AssayCall* c) { return ContentKeyOf(c, 1); });
}

// Calls counted per process: the check comes first, the timing loop later.
int& Calls() {
  static int calls = 0;
  return ++calls;
}

int StaleOutput(const AssayCall* call) { return Calls() <= 3 ? Right(call) : 0; }

int EarlyExit(const AssayCall* call) {
  if (Calls() <= 3) return Right(call);
  for (std::int64_t h = 0; h < kHeads / 2; ++h) Head(call, 0, h);  // half of the work
  return 0;
}

int PreviousCall(const AssayCall* call) {
  static float carry = 0;
  Right(call);
  bf16* out = Output<bf16>(call, "output");
  out[0] = ToBF16(static_cast<double>(ToFloat(out[0]) + carry));
  carry = Calls() > 1 ? 1.0f : 0.0f;
  return 0;
}

int AccumulatesIntoOutput(const AssayCall* call) {
  bf16* out = Output<bf16>(call, "output");
  const double before = static_cast<double>(ToFloat(out[0]));  // believes the output to be zero
  Right(call);
  out[0] = ToBF16(static_cast<double>(ToFloat(out[0])) + before);
  return 0;
}

int OutOfBounds(const AssayCall* call) {
  Right(call);
  const AssayTensor* out = Find(call->outputs, call->output_count, "output");
  static_cast<char*>(out->data)[Bytes(*out)] = 0;
  return 0;
}

int BeforeTheStart(const AssayCall* call) {
  Right(call);
  Output<char>(call, "new_state")[-1] = 0;
  return 0;
}

int ModifiesInput(const AssayCall* call) {
  Right(call);
  std::memcpy(Input<float>(call, "state"), Output<float>(call, "new_state"), 64);
  return 0;
}

int WorksAfterReturn(const AssayCall* call) {
  Right(call);
  bf16* last = Output<bf16>(call, "output") + kHeads * kSize - 1;
  const bf16 value = *last;
  last->bits = 0xFFFF;
  std::thread([last, value] {
    std::this_thread::sleep_for(200us);
    *last = value;
  }).detach();
  return 0;
}

int Throws(const AssayCall*) { throw std::runtime_error("thrown on purpose"); }
int Crashes(const AssayCall*) {
  volatile int* nowhere = nullptr;
  *nowhere = 1;
  return 0;
}
int ExitsZero(const AssayCall*) { std::_Exit(0); }
int ReturnsAnError(const AssayCall*) { return 7; }
int LoopsForever(const AssayCall*) {
  for (std::atomic<bool> forever{true}; forever.load();) std::this_thread::sleep_for(1ms);
  return 0;
}

int MemoryBomb(const AssayCall* call) {
  std::vector<std::vector<char>> blocks;
  for (int i = 0; i < 1'000'000; ++i) blocks.emplace_back(64u << 20, 'x');
  return Right(call);
}

int Forks(const AssayCall* call) {
  static const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  return Right(call);
}

int PrintsNoise(const AssayCall* call) {
  std::fputs("{\"status\": \"ok\"}\n", stdout);
  std::fflush(stdout);
  return Right(call);
}

int ClosesTheSocket(const AssayCall* call) {
  for (int fd = 3; fd < 64; ++fd) close(fd);
  return Right(call);
}

int OnePercentOff(const AssayCall* call) {
  Right(call);
  bf16* out = Output<bf16>(call, "output");
  for (int i = 0; i < kHeads * kSize; ++i) {
    out[i] = ToBF16(1.01 * static_cast<double>(ToFloat(out[i])));
  }
  return 0;
}

int LeavesAHole(const AssayCall* call) {
  for (std::int64_t h = 0; h + 1 < kHeads; ++h) Head(call, 0, h);
  return 0;
}

std::int64_t RealNanoseconds(clockid_t clock) {
  timespec time{};
  syscall(SYS_clock_gettime, clock, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

// Takes the place of clock_gettime in every loaded library: from its first call on, time passes
// five times too slowly.
int SlowClock(clockid_t clock, timespec* time) {
  static const std::int64_t monotonic = RealNanoseconds(CLOCK_MONOTONIC);
  static const std::int64_t realtime = RealNanoseconds(CLOCK_REALTIME);
  const std::int64_t start = clock == CLOCK_REALTIME ? realtime : monotonic;
  const std::int64_t ns = start + (RealNanoseconds(clock) - start) / 5;
  time->tv_sec = ns / 1'000'000'000LL;
  time->tv_nsec = ns % 1'000'000'000LL;
  return 0;
}

// The run-time linker's tables of one loaded object.
struct LinkTables {
  const char* names = nullptr;
  const ElfW(Sym) * symbols = nullptr;
  const ElfW(Rela) * jumps = nullptr;
  const ElfW(Rela) * others = nullptr;
  std::size_t jump_bytes = 0, other_bytes = 0;
};

LinkTables TablesOf(const dl_phdr_info& object) {
  LinkTables tables;
  for (int p = 0; p < object.dlpi_phnum; ++p) {
    if (object.dlpi_phdr[p].p_type != PT_DYNAMIC) continue;
    const auto* entry =
        reinterpret_cast<const ElfW(Dyn)*>(object.dlpi_addr + object.dlpi_phdr[p].p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
      const auto at = entry->d_un.d_ptr;
      if (entry->d_tag == DT_STRTAB) tables.names = reinterpret_cast<const char*>(at);
      if (entry->d_tag == DT_SYMTAB) tables.symbols = reinterpret_cast<const ElfW(Sym)*>(at);
      if (entry->d_tag == DT_JMPREL) tables.jumps = reinterpret_cast<const ElfW(Rela)*>(at);
      if (entry->d_tag == DT_RELA) tables.others = reinterpret_cast<const ElfW(Rela)*>(at);
      if (entry->d_tag == DT_PLTRELSZ) tables.jump_bytes = entry->d_un.d_val;
      if (entry->d_tag == DT_RELASZ) tables.other_bytes = entry->d_un.d_val;
    }
  }
  return tables;
}

int ReplaceClock(dl_phdr_info* object, std::size_t, void*) {
  const LinkTables tables = TablesOf(*object);
  if (tables.names == nullptr || tables.symbols == nullptr) return 0;
  if (reinterpret_cast<std::uintptr_t>(tables.names) < 0x10000) return 0;  // the vDSO's are offsets
  const auto replace = [&](const ElfW(Rela) * list, std::size_t bytes) {
    for (std::size_t i = 0; list != nullptr && i < bytes / sizeof *list; ++i) {
      const auto symbol = ELF64_R_SYM(list[i].r_info);
      if (symbol == 0) continue;
      const char* name = tables.names + tables.symbols[symbol].st_name;
      if (std::strcmp(name, "clock_gettime") != 0) continue;
      const std::uintptr_t slot = object->dlpi_addr + list[i].r_offset;
      mprotect(reinterpret_cast<void*>(slot & ~std::uintptr_t{4095}), 4096, PROT_READ | PROT_WRITE);
      *reinterpret_cast<int (**)(clockid_t, timespec*)>(slot) = SlowClock;
    }
  };
  replace(tables.jumps, tables.jump_bytes);
  replace(tables.others, tables.other_bytes);
  return 0;
}

int PatchesTheClock(const AssayCall* call) {
  static const int patched = dl_iterate_phdr(ReplaceClock, nullptr);
  (void)patched;
  return Right(call);
}

// The old state's memory becomes the output, as engines that update in place would have it.
int AliasesAnInput(const AssayCall* call) {
  for (std::size_t o = 0; o < call->output_count; ++o) {
    auto& output = const_cast<AssayNamedTensor&>(call->outputs[o]);
    const AssayTensor* state = Find(call->inputs, call->input_count, "state");
    if (std::strcmp(output.name, "new_state") == 0 && state != nullptr)
      output.tensor.data = state->data;
  }
  return Right(call);
}

const char* Refuses(const AssayCall*) { return "refuses on purpose"; }

Hazard Make(const char* name, const char* summary, int (*run)(const AssayCall*),
            std::vector<Status> ends, std::string sub = "") {
  return {{name, "gdn_decode", summary, nullptr, nullptr, run, nullptr}, std::move(ends), sub};
}

// A sanitizer's allocator knows no limit and would take the machine down.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryIsLimited = false;
#else
constexpr bool kMemoryIsLimited = true;
#endif

std::vector<Hazard> MakeHazards() {
  using enum Status;
  std::vector<Hazard> all = {
      Make("pointer_keyed_cache", "returns kept results for known input addresses", ByPointer,
           {kIncorrect}, "unstable"),
      Make("shape_keyed_cache", "returns kept results for known shapes", ByShape, {kIncorrect},
           "numerical"),
      Make("content_memo", "returns kept results for known input bytes", ByContent, {kSuspicious},
           "memo"),
      Make("blurred_memo", "the same for inputs that differ in their lowest bits", ByBlurredContent,
           {kSuspicious, kIncorrect}),
      Make("stale_output", "writes nothing once it was checked", StaleOutput, {kIncorrect},
           "unstable"),
      Make("early_exit", "computes half once it was checked", EarlyExit, {kIncorrect}, "unstable"),
      Make("previous_call", "adds something of the previous call", PreviousCall, {kIncorrect}),
      Make("skipped_initialisation", "adds to outputs that it believes to be zero",
           AccumulatesIntoOutput, {kIncorrect}, "numerical"),
      Make("hole", "leaves the last head unwritten", LeavesAHole, {kIncorrect}, "numerical"),
      Make("one_percent_off", "scales the output by 1.01", OnePercentOff, {kIncorrect},
           "numerical"),
      Make("out_of_bounds", "writes one byte behind the output", OutOfBounds, {kIncorrect},
           "out_of_bounds"),
      Make("before_the_start", "writes one byte before an output", BeforeTheStart, {kIncorrect},
           "out_of_bounds"),
      Make("modified_input", "updates the state in place as well", ModifiesInput, {kIncorrect},
           "input_modified"),
      Make("aliasing", "hands an input's memory back as its output", AliasesAnInput, {kIncorrect},
           "aliasing"),
      Make("works_after_return", "returns while a thread still writes", WorksAfterReturn,
           {kIncorrect}),
      Make("patched_clock", "slows the clock that it is timed by", PatchesTheClock, {kSuspicious},
           "clock"),
      Make("forks", "leaves a process behind", Forks, {kFailed}, "child"),
      Make("stdout_noise", "prints what looks like a reply", PrintsNoise, {kPassed}),
      Make("closes_the_socket", "closes file descriptors that are not its own", ClosesTheSocket,
           {kFailed}),
      Make("exit_zero", "ends the process with exit code 0", ExitsZero, {kFailed}, "exit"),
      Make("crash", "writes to address 0", Crashes, {kFailed}),
      Make("exception", "throws through the C interface", Throws, {kFailed}, "exception"),
      Make("error_code", "returns an error", ReturnsAnError, {kFailed}, "exception"),
      Make("endless_loop", "never returns", LoopsForever, {kTimeout}),
      Make("refusal", "declines every call", Right, {kUnsupported}),
  };
  all.back().kernel.supports = Refuses;
  if (kMemoryIsLimited) {
    all.push_back(
        Make("memory_bomb", "allocates until something gives", MemoryBomb, {kOom, kFailed}));
  }
  return all;
}

bool Caught(const Hazard& hazard, const CaseResult& result) {
  const bool ended_right =
      std::find(hazard.ends.begin(), hazard.ends.end(), result.status) != hazard.ends.end();
  return ended_right && (hazard.sub.empty() || hazard.sub == result.sub);
}

}  // namespace

const std::vector<Hazard>& Hazards() {
  static const std::vector<Hazard> hazards = MakeHazards();
  return hazards;
}

std::span<const AssayBackend> HazardKernels() {
  static const std::vector<AssayBackend> kernels = [] {
    std::vector<AssayBackend> list;
    for (const Hazard& hazard : Hazards()) list.push_back(hazard.kernel);
    return list;
  }();
  return kernels;
}

std::vector<HazardOutcome> TryHazards(const std::vector<std::string>& worker_command) {
  const Registry registry = WithPluginBackends(BuiltInRegistry(), HazardKernels());
  RunOptions options;
  options.worker_command = worker_command;
  options.budget_s = 0.6;
  options.timeout_s = 5;
  std::vector<HazardOutcome> outcomes;
  const std::atomic<bool> stop{false};
  for (const Hazard& hazard : Hazards()) {
    Suite suite;
    Workload workload;
    workload.uuid = hazard.kernel.name;
    workload.definition = "gdn_decode_qk4_v8_d128_k_last";
    workload.axes = {{"batch_size", 1}};
    suite.workloads.push_back(workload);
    options.backends = {hazard.kernel.name};
    RunCallbacks callbacks;
    callbacks.on_result = [&](const CaseResult& result) {
      outcomes.push_back({&hazard, result, Caught(hazard, result)});
    };
    RunCases(PlanCases(registry, suite, options), options, {}, callbacks, stop);
  }
  return outcomes;
}

}  // namespace assay
