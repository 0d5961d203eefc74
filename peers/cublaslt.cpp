#include "peers/cublaslt.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/stats.h"
#include "cuda/check.h"
#include "cuda/notes.h"
#include "ops/dense_gemm_bf16_nt/spec.h"
#include "peers/cublaslt_gemm.h"

namespace assay::peers {
namespace {

using dense_gemm_bf16_nt::Args;

// Rounds of timing. Each round runs every candidate once: a chip that slows down as it warms up
// (large products are limited by power) slows all of them alike.
constexpr int kRounds = 9;

// M, N, K and the alignments of A, B, C: content sets of one case share a choice.
using ChoiceKey = std::array<std::int64_t, 6>;

struct Choice {
  CublasLtAlgorithm algorithm{};
  std::string text;  // "candidate 3 of 8 (algorithm 66, tile 23, ...), 0.497 ms; first 0.575 ms"
};

// The library, and what was chosen with it.
struct Session : CublasLtSession {
  using CublasLtSession::CublasLtSession;
  std::map<ChoiceKey, Choice> choices;  // of cublaslt_best
};

// --- best of the candidates ---

// A stream, two events and an output of our own: the caller's output must not hold a right answer
// before the judged call has run.
class Stopwatch {
 public:
  explicit Stopwatch(const Args& args) {
    CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    CheckCuda(cudaEventCreate(&begin_), "cudaEventCreate");
    CheckCuda(cudaEventCreate(&end_), "cudaEventCreate");
    const auto elements = static_cast<std::size_t>(args.m * args.ldc);
    CheckCuda(cudaMalloc(&c_, elements * sizeof(bf16)), "cudaMalloc of a trial output");
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    cudaFree(c_);
    if (end_ != nullptr) cudaEventDestroy(end_);
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  double Milliseconds(const CublasLtGemm& product, const CublasLtAlgorithm& algorithm) {
    // Keeps the stream busy until the product is enqueued: one that starts late would look slow.
    CheckCuda(cudaMemsetAsync(product.session().workspace(), 0, kCublasLtWorkspaceBytes, stream_),
              "cudaMemset of cuBLASLt's workspace");
    CheckCuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    Args trial = product.args();
    trial.c = static_cast<bf16*>(c_);
    product.Enqueue(algorithm, trial, stream_);
    CheckCuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
    CheckCuda(cudaEventSynchronize(end_), "trial of a cuBLASLt algorithm");
    float milliseconds = 0;
    CheckCuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return milliseconds;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  void* c_ = nullptr;
};

Choice ChooseFastest(const CublasLtGemm& product,
                     const std::vector<CublasLtAlgorithm>& candidates) {
  Stopwatch stopwatch(product.args());
  std::vector<std::vector<double>> samples(candidates.size());
  for (int round = -1; round < kRounds; ++round) {  // round -1 loads the kernels
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const double milliseconds = stopwatch.Milliseconds(product, candidates[i]);
      if (round >= 0) samples[i].push_back(milliseconds);
    }
  }
  std::vector<double> medians;
  for (const std::vector<double>& times : samples) medians.push_back(Median(times));
  const auto best =
      static_cast<std::size_t>(std::min_element(medians.begin(), medians.end()) - medians.begin());
  char times[80];
  std::snprintf(times, sizeof times, "), %.4f ms; first %.4f ms", medians[best], medians[0]);
  return {candidates[best], "candidate " + std::to_string(best + 1) + " of " +
                                std::to_string(candidates.size()) + " (" +
                                AlgorithmText(product.session().api, candidates[best]) + times};
}

// Chooses once per key in a session.
const Choice& Fastest(Session& session, const CublasLtGemm& product,
                      const std::vector<CublasLtAlgorithm>& candidates) {
  const Args& args = product.args();
  const ChoiceKey key = {args.m,
                         args.n,
                         args.k,
                         CublasLtAlignment(args.a),
                         CublasLtAlignment(args.b),
                         CublasLtAlignment(args.c)};
  const auto known = session.choices.find(key);
  if (known != session.choices.end()) return known->second;
  return session.choices[key] = ChooseFastest(product, candidates);
}

DeviceCall Prepare(const std::shared_ptr<Session>& session, const Args& args, bool fastest) {
  if (args.m == 0 || args.n == 0) return [](Stream) {};
  const auto product = std::make_shared<CublasLtGemm>(session, args);
  const std::vector<CublasLtAlgorithm> candidates = product->Candidates();
  session->workspace();  // allocated here: the call may not
  AddNote(session->api.text);
  CublasLtAlgorithm algorithm = candidates.front();
  if (fastest) {
    const Choice& choice = Fastest(*session, *product, candidates);
    AddNote(choice.text);
    algorithm = choice.algorithm;
  }
  return
      [product, algorithm](Stream stream) { product->Enqueue(algorithm, product->args(), stream); };
}

}  // namespace

std::vector<Backend> CublasLtBackends(const std::vector<std::string>& paths) {
  std::vector<Backend> backends;
  const OpenedLate<Session> session(paths);
  for (const bool fastest : {false, true}) {
    Backend backend;
    backend.name = fastest ? "cublaslt_best" : "cublaslt";
    backend.summary = fastest ? "cuBLASLt, the fastest of its first eight candidates"
                              : "cuBLASLt, the algorithm that its heuristic puts first";
    backend.device = "cuda";
    backend.supports = [session](const Problem&, const Bundle&) { return session()->api.why_not; };
    backend.prepare = [session, fastest](const Problem& problem, const Bundle&,
                                         const Bundle& inputs, Bundle& outputs) {
      const std::string& why_not = session()->api.why_not;
      if (!why_not.empty()) throw Error(Fault::kUnsupported, why_not);
      return Prepare(session(), dense_gemm_bf16_nt::Bind(problem, inputs, outputs), fastest);
    };
    backends.push_back(std::move(backend));
  }
  return backends;
}

}  // namespace assay::peers
