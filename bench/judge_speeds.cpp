// What judging costs besides the kernels: import, hashing, ledgers, one case, its memory. Prints
// JSON.
//
//   judge_speeds <assay> <kernel plugin> <reference plugin> > results/.../judge_speeds.json
//
// The plugins are those of tests/test_dataset.cpp (toy_kernel.so, toy_truth.so of the build
// folder).
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/stats.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "io/sha256.h"
#include "replay/device.h"
#include "replay/trace_family.h"
#include "report/best.h"
#include "report/html.h"
#include "report/test_fixture.h"

namespace assay {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Wall time, and what this process and its children computed meanwhile.
struct Spent {
  double wall_s = 0, cpu_s = 0;
};

double CpuSeconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(who, &usage);
    for (const timeval& part : {usage.ru_utime, usage.ru_stime}) {
      seconds += static_cast<double>(part.tv_sec) + 1e-6 * static_cast<double>(part.tv_usec);
    }
  }
  return seconds;
}

template <class Work>
Spent TimeOf(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  const double cpu = CpuSeconds();
  work();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
          CpuSeconds() - cpu};
}

// The least of several: other programs may share the machine.
template <class Work>
Spent LeastOf(int times, const Work& work) {
  Spent least = TimeOf(work);
  for (int i = 1; i < times; ++i) {
    const Spent next = TimeOf(work);
    least = {std::min(least.wall_s, next.wall_s), std::min(least.cpu_s, next.cpu_s)};
  }
  return least;
}

void Put(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  WriteFile(path, text);
}

const char* const kToy = R"({"name": "toy_scale", "op_type": "toy",
 "axes": {"B": {"type": "var"}, "D": {"type": "const", "value": 8}},
 "inputs": {"x": {"shape": ["B", "D"], "dtype": "float32"},
            "alpha": {"shape": null, "dtype": "float32"}},
 "outputs": {"out": {"shape": ["B", "D"], "dtype": "float32"}},
 "reference": "def run(x, alpha):\n    return alpha * x"})";

void MakeDataset(const std::string& root, int workloads, std::int64_t rows) {
  Put(root + "/definitions/toy/toy_scale.json", kToy);
  std::string lines;
  for (int i = 0; i < workloads; ++i) {
    lines += fmt::format(
        "{{\"definition\": \"toy_scale\", \"workload\": {{\"uuid\": \"{}-{}\", \"axes\": {{\"B\": "
        "{}}}, "
        "\"inputs\": {{\"x\": {{\"type\": \"random\"}}, \"alpha\": {{\"type\": \"scalar\", "
        "\"value\": "
        "0.5}}}}}}, \"solution\": null, \"evaluation\": null, \"attributes\": {{\"layer_id\": "
        "{}}}}}\n",
        Sha256Hex(std::to_string(i)).substr(0, 24), i, rows, i % 40);
  }
  Put(root + "/workloads/toy/toy_scale.jsonl", lines);
}

Json ImportSpeed(const std::string& folder) {
  constexpr int kWorkloads = 10'000;
  const std::string root = folder + "/large";
  MakeDataset(root, kWorkloads, 4);
  std::size_t loaded = 0;
  const Spent spent = LeastOf(5, [&] {
    std::vector<TraceProblem> problems;
    const auto definitions = LoadTraceDefinitions(root, problems);
    const Registry registry = WithTraceDefinitions(Registry({}), definitions);
    const Suite suite = LoadTraceSuite(root, definitions, registry);
    loaded = suite.workloads.size();
    WriteSuite(folder + "/large.jsonl", suite.workloads);
  });
  return {{"workloads", loaded}, {"seconds", spent.wall_s}, {"cpu_seconds", spent.cpu_s}};
}

Json HashSpeed(const std::string& folder) {
  constexpr std::int64_t kBytes = std::int64_t{1} << 28;
  Bundle bundle = Bundle::Allocate({{"tensor", DType::kU8, {kBytes}}});
  Tensor& tensor = bundle.tensors()[0];
  std::string bytes = SafetensorsPrefix({&tensor, 1});
  const std::span<const std::byte> data(tensor.data, tensor.bytes());
  const std::string name = Hex(Sha256().Update(bytes).Update(data).Finish());
  const std::string path = folder + "/" + name + ".safetensors";
  WriteSafetensors(path, {&tensor, 1});
  const Spent spent = LeastOf(5, [&] { SafetensorsFile::Open(path); });
  const double gigabytes = static_cast<double>(kBytes) * 1e-9;
  return {{"bytes", kBytes},
          {"gigabytes_per_s", gigabytes / spent.wall_s},
          {"gigabytes_per_cpu_s", gigabytes / spent.cpu_s}};
}

// A command of the program on a ledger, as a user runs it.
Json CommandSpeed(const std::string& assay, const std::string& command, const std::string& ledger) {
  const std::string line = fmt::format("{} {} --ledger {} >/dev/null", assay, command, ledger);
  const Spent spent = LeastOf(5, [&] {
    if (std::system(line.c_str()) != 0) throw std::runtime_error(line + " failed");
  });
  return {{"wall_ms", spent.wall_s * 1e3}, {"cpu_ms", spent.cpu_s * 1e3}};
}

Json ReportSpeed() {
  const RunReport report = FakeLargeRun(10'000);
  std::size_t bytes = 0;
  const Spent spent = LeastOf(5, [&] { bytes = HtmlReport(report).size(); });
  return {{"cases", report.cases.size()},
          {"seconds", spent.wall_s},
          {"cpu_seconds", spent.cpu_s},
          {"page_bytes", bytes}};
}

Json LedgerSpeed(const std::string& assay, const std::string& folder, const std::string& ending,
                 int cases) {
  const std::string path = folder + "/ledger" + ending;
  const RunReport report = FakeLargeRun(10'000);
  {
    Ledger ledger = Ledger::Open(path, Ledger::Mode::kAppend);
    for (int run = 0; run * 10'000 < cases; ++run) {
      RunInfo info = report.run;
      info.id = fmt::format("run-{:03}", run);
      ledger.BeginRun(info, {});
      for (const CaseResult& result : report.cases) ledger.Add(info.id, result);
    }
  }
  const std::string last = Ledger::Open(path, Ledger::Mode::kReadOnly).Runs().back().id;
  std::size_t rows = 0, best = 0;
  const Spent spent = LeastOf(5, [&] {
    const Ledger ledger = Ledger::Open(path, Ledger::Mode::kReadOnly);
    const std::vector<CaseRow> read = ledger.Rows(last);
    rows = read.size();
    best = BestBackends(read).size();
  });
  const Spent done = TimeOf([&] { Ledger::Open(path, Ledger::Mode::kReadOnly).Done("none"); });
  return {{"rows_in_ledger", cases},
          {"rows_read", rows},
          {"shapes", best},
          {"rows_and_best_ms", spent.wall_s * 1e3},
          {"rows_and_best_cpu_ms", spent.cpu_s * 1e3},
          {"assay_show", CommandSpeed(assay, "show last", path)},
          {"assay_best", CommandSpeed(assay, "best", path)},
          {"resume_scan_ms", done.wall_s * 1e3},
          {"file_bytes", fs::file_size(path)}};
}

Json RunToy(const std::string& assay, const std::string& folder, const std::string& root,
            const std::vector<std::string>& plugins) {
  const std::string out = folder + "/run.json", log = folder + "/log";
  const std::string command = fmt::format(
      "cd {} && {} run --dataset {} --plugin {} --reference {} --backend toy_good --no-timing "
      "--json "
      "--ledger {}/run.jsonl >{} 2>{}",
      folder, assay, root, plugins[0], plugins[1], folder, out, log);
  if (std::system(command.c_str()) != 0) throw std::runtime_error(ReadFile(log));
  const Json cases = Json::parse(ReadFile(out)).at("cases");
  fs::remove(folder + "/run.jsonl");
  return cases;
}

Json CaseSpeed(const std::string& assay, const std::string& folder,
               const std::vector<std::string>& plugins) {
  MakeDataset(folder + "/small", 200, 4);
  std::vector<double> seconds;
  for (const Json& one : RunToy(assay, folder, folder + "/small", plugins)) {
    seconds.push_back(one.at("seconds").get<double>());
  }
  return {{"cases", seconds.size()}, {"median_ms", Median(seconds) * 1e3}};
}

// Highest resident memory of the worker of one large case, against its tensors.
Json CaseMemory(const std::string& assay, const std::string& folder,
                const std::vector<std::string>& plugins) {
  constexpr std::int64_t kRows = 4'000'000;
  MakeDataset(folder + "/big", 1, kRows);
  const Json one = RunToy(assay, folder, folder + "/big", plugins).at(0);
  const double tensors = 2.0 * kRows * 8 * 4;
  return {{"tensor_bytes", tensors},
          {"worker_peak_bytes", one.at("peak_bytes")},
          {"peak_over_tensors", one.at("peak_bytes").get<double>() / tensors}};
}

int Main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: judge_speeds <assay> <kernel plugin> <reference plugin>\n");
    return 2;
  }
  std::string folder = (fs::temp_directory_path() / "assay-speeds-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 4;
  // Absolute: they are used from `folder`.
  const std::string assay = fs::absolute(argv[1]);
  const std::vector<std::string> plugins = {fs::absolute(argv[2]), fs::absolute(argv[3])};
  Json json = {{"machine", DescribeRun("judge_speeds", 0).device}};
  json["import_10000_workloads"] = ImportSpeed(folder);
  json["blob_hashing_one_core"] = HashSpeed(folder);
  json["no_op_case_warm"] = CaseSpeed(assay, folder, plugins);
  json["case_memory"] = CaseMemory(assay, folder, plugins);
  json["report_10000"] = ReportSpeed();
  json["ledger_10000"] = LedgerSpeed(assay, folder, "-small.sqlite", 10'000);
  json["ledger_1000000"] = LedgerSpeed(assay, folder, "-large.sqlite", 1'000'000);
  fs::remove_all(folder);
  fmt::print("{}\n", json.dump(2));
  return 0;
}

}  // namespace
}  // namespace assay

int main(int argc, char** argv) { return assay::Main(argc, argv); }
