// How long importing the 1,104 captured records and loading our compact suite takes.
//
//   import_bench <file of captured records>
#include <benchmark/benchmark.h>

#include <cstdio>
#include <exception>
#include <string>

#include "ops/registry.h"
#include "replay/import.h"

namespace assay {
namespace {

std::string captured_file;

void BM_ImportCapturedRecords(benchmark::State& state) {
  std::size_t records = 0;
  for (auto _ : state) records = ImportRecords(captured_file, BuiltInRegistry()).workloads.size();
  state.counters["records"] = static_cast<double>(records);
}
BENCHMARK(BM_ImportCapturedRecords)
    ->Unit(benchmark::kMillisecond)
    ->MeasureProcessCPUTime()
    ->UseRealTime();

void BM_LoadServingSuite(benchmark::State& state) {
  const std::string path = SuitePath("serving");
  std::size_t records = 0;
  for (auto _ : state) records = LoadSuite(path, BuiltInRegistry()).workloads.size();
  state.counters["records"] = static_cast<double>(records);
}
BENCHMARK(BM_LoadServingSuite)
    ->Unit(benchmark::kMillisecond)
    ->MeasureProcessCPUTime()
    ->UseRealTime();

}  // namespace
}  // namespace assay

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: import_bench [benchmark options] <file of captured records>\n");
    return 2;
  }
  assay::captured_file = argv[1];
  try {
    benchmark::RunSpecifiedBenchmarks();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
