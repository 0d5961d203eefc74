// The bf16 GEMM through oneDNN's matmul primitive.
//
// oneDNN may split k over its threads, which makes bits depend on the thread count. So we split m
// and n ourselves, always in the same blocks, and let each of our threads run a one-thread
// primitive.
#include "cpu/gemm_onednn.h"

#include <omp.h>

#include <algorithm>
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"

namespace assay::cpu {
namespace {

// Rows enough to spread oneDNN's packing of B, columns few enough to occupy 16 threads at n = 4096:
// the best of 256..4096 x 256..2048 with AMX on 2 and 16 cores.
constexpr std::int64_t kBlockRows = 512;
constexpr std::int64_t kBlockColumns = 256;

using MatMulKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                             std::int64_t>;  // m n k lda ldb ldc

struct MatMul {
  dnnl::memory::desc a, b, c, scratch;
  dnnl::matmul primitive;
};

dnnl::engine& Engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

MatMul MakeMatMul(const GemmBf16Nt& block) {
  using dnnl::memory;
  constexpr auto kType = memory::data_type::bf16;
  MatMul made;
  made.a = memory::desc({block.m, block.k}, kType, memory::dims{block.lda, 1});
  made.b = memory::desc({block.k, block.n}, kType, memory::dims{1, block.ldb});
  made.c = memory::desc({block.m, block.n}, kType, memory::dims{block.ldc, 1});
  const dnnl::matmul::desc description(made.a, made.b, made.c);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::matmul::primitive_desc primitive(description, attributes, Engine());
  made.scratch = primitive.scratchpad_desc();
  made.primitive = dnnl::matmul(primitive);
  return made;
}

// Built once per shape and executed from several threads at once, which is why the scratchpad is
// ours: the library's own is shared by all executions of a primitive, and results were wrong.
const MatMul& CachedMatMul(const GemmBf16Nt& block) {
  static std::mutex mutex;
  static std::map<MatMulKey, MatMul> cache;
  const MatMulKey key(block.m, block.n, block.k, block.lda, block.ldb, block.ldc);
  const std::lock_guard lock(mutex);
  const auto found = cache.find(key);
  if (found != cache.end()) return found->second;
  return cache.emplace(key, MakeMatMul(block)).first->second;
}

// The calling thread's OpenMP team size, set to 1 while alive.
class OneOpenMpThread {
 public:
  OneOpenMpThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneOpenMpThread() { omp_set_num_threads(before_); }
  OneOpenMpThread(const OneOpenMpThread&) = delete;
  OneOpenMpThread& operator=(const OneOpenMpThread&) = delete;

 private:
  int before_;
};

std::byte* ThreadScratch(std::size_t bytes) {
  thread_local std::vector<std::byte> scratch;
  if (scratch.size() < bytes) scratch.resize(bytes);
  return scratch.data();
}

void RunBlock(const GemmBf16Nt& block) {
  const OneOpenMpThread one_thread;
  const MatMul& matmul = CachedMatMul(block);
  const auto memory = [](const dnnl::memory::desc& desc, const void* data) {
    return dnnl::memory(desc, Engine(), const_cast<void*>(data));
  };
  dnnl::stream stream(Engine());
  matmul.primitive.execute(
      stream,
      {{DNNL_ARG_SRC, memory(matmul.a, block.a)},
       {DNNL_ARG_WEIGHTS, memory(matmul.b, block.b)},
       {DNNL_ARG_DST, memory(matmul.c, block.c)},
       {DNNL_ARG_SCRATCHPAD, memory(matmul.scratch, ThreadScratch(matmul.scratch.get_size()))}});
  stream.wait();
}

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

bool OneDnnBuiltIn() { return true; }

// With AVX512-BF16 (and AMX, which implies it) oneDNN uses instructions that our loops do not have.
// Without, it emulates bf16 at a quarter of the rate of fp32 multiply-adds; our loops win by 3-4x
// (README of ops/dense_gemm_bf16_nt).
bool OneDnnIsFaster() { return __builtin_cpu_supports("avx512bf16") != 0; }

void RunOneDnn(const GemmBf16Nt& args, int threads) {
  if (args.m <= 0 || args.n <= 0) return;
  if (args.k <= 0) return RunOwnLoops(args, threads);
  const std::int64_t row_blocks = CeilDiv(args.m, kBlockRows);
  const std::int64_t column_blocks = CeilDiv(args.n, kBlockColumns);
  try {
    ParallelFor(row_blocks * column_blocks, threads, [&](std::int64_t index) {
      const std::int64_t m0 = index % row_blocks * kBlockRows;
      const std::int64_t n0 = index / row_blocks * kBlockColumns;
      GemmBf16Nt block = args;
      block.m = std::min(kBlockRows, args.m - m0);
      block.n = std::min(kBlockColumns, args.n - n0);
      block.a += m0 * args.lda;
      block.b += n0 * args.ldb;
      block.c += m0 * args.ldc + n0;
      RunBlock(block);
    });
  } catch (const dnnl::error& error) {
    throw Error(Fault::kUnsupported, std::string("oneDNN cannot run this GEMM: ") + error.what());
  }
}

}  // namespace assay::cpu
