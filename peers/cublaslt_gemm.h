// One product by cuBLASLt, its candidates and their numbers: what the peer and the GPU bench share.
// Needs the toolkit, as cublaslt_api.h says.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/stream.h"
#include "ops/dense_gemm_bf16_nt/spec.h"
#include "peers/cublaslt_api.h"

namespace assay::peers {

// The library, one handle and one workspace, made when first needed and kept.
class CublasLtSession {
 public:
  explicit CublasLtSession(const std::vector<std::string>& paths) : api(paths) {}
  CublasLtSession(const CublasLtSession&) = delete;
  CublasLtSession& operator=(const CublasLtSession&) = delete;
  ~CublasLtSession();

  const CublasLtApi api;

  cublasLtHandle_t handle();  // throws kUnsupported
  void* workspace();          // of kCublasLtWorkspaceBytes

 private:
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
};

// C = A B^T, bf16 in and out, fp32 sums. cuBLASLt counts columns first: our row-major C [M,N] is
// its [N,M], so its first operand is B (transposed) and its second is A.
class CublasLtGemm {
 public:
  CublasLtGemm(std::shared_ptr<CublasLtSession> session, const dense_gemm_bf16_nt::Args& args);
  CublasLtGemm(const CublasLtGemm&) = delete;
  CublasLtGemm& operator=(const CublasLtGemm&) = delete;
  ~CublasLtGemm();

  // Best first by cuBLASLt's own estimate, for the alignment of the addresses in args(); throws
  // kUnsupported when there is none.
  std::vector<CublasLtAlgorithm> Candidates() const;
  // `operands` of the planned sizes and strides, at least as aligned as those of args().
  void Enqueue(const CublasLtAlgorithm& algorithm, const dense_gemm_bf16_nt::Args& operands,
               Stream stream) const;

  const dense_gemm_bf16_nt::Args& args() const { return args_; }
  CublasLtSession& session() const { return *session_; }

 private:
  void MakeLayout(cublasLtMatrixLayout_t* layout, std::int64_t rows, std::int64_t columns,
                  std::int64_t stride) const;

  std::shared_ptr<CublasLtSession> session_;
  dense_gemm_bf16_nt::Args args_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
};

// The largest power of two up to 256 that divides the address: what cuBLASLt may assume.
std::uint32_t CublasLtAlignment(const void* pointer);

// "algorithm 66, tile 23, stages 35, split-K 1, cluster 2" in the library's own numbers.
std::string AlgorithmText(const CublasLtApi& api, const CublasLtAlgorithm& algorithm);

}  // namespace assay::peers
