// The GPU kernels of this room: every element against fp64, exactness, bits equal among kernels and
// to the CPU where sums are exact, odd strides and bases, guard bands, repeatability.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>

#include "base/error.h"
#include "base/random.h"
#include "cuda/device_test.cuh"
#include "ops/dense_gemm_bf16_nt/check_sm90.cuh"
#include "ops/dense_gemm_bf16_nt/sm90.h"

namespace assay::dense_gemm_bf16_nt {
namespace {

using testing::HasSubstr;

constexpr std::uint16_t kPoison = 0x7FC5;  // a NaN; also what guard bands hold
constexpr std::int64_t kGuard = 2048;      // elements before and after each tensor, 4 KB

// [rows, columns] with a row stride, on the device, between guard bands. `shift` elements move the
// base off its alignment.
class Matrix {
 public:
  Matrix(std::int64_t rows, std::int64_t columns, std::int64_t stride, std::int64_t shift = 0)
      : rows_(rows),
        columns_(columns),
        stride_(stride),
        shift_(shift),
        memory_(static_cast<std::size_t>(rows * stride + shift + 2 * kGuard)) {
    Poison();
  }
  Matrix(std::int64_t rows, std::int64_t columns) : Matrix(rows, columns, columns) {}

  bf16* data() const { return reinterpret_cast<bf16*>(memory_.data()) + kGuard + shift_; }

  void Poison() { memory_.Set(std::vector<std::uint16_t>(memory_.size(), kPoison)); }
  // Sets the elements; what lies between rows stays poison, which no kernel may multiply.
  void Fill(const std::function<float(std::int64_t row, std::int64_t column)>& value) {
    std::vector<std::uint16_t> all(memory_.size(), kPoison);
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = 0; c < columns_; ++c) all[Index(r, c)] = ToBF16(value(r, c)).bits;
    }
    memory_.Set(all);
  }
  void FillRandom(std::uint64_t tensor, float factor) {
    Fill([&](std::int64_t r, std::int64_t c) {
      return factor * UnitNormal(20261130, tensor, static_cast<std::uint64_t>(r * columns_ + c));
    });
  }
  // The elements, row-major; fails where a guard or the space between rows was written.
  std::vector<std::uint16_t> Read() const {
    const std::vector<std::uint16_t> all = memory_.Get();
    std::vector<std::uint16_t> values;
    std::size_t touched = 0;
    std::vector<bool> inside(all.size(), false);
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = 0; c < columns_; ++c) {
        values.push_back(all[Index(r, c)]);
        inside[Index(r, c)] = true;
      }
    }
    for (std::size_t i = 0; i < all.size(); ++i) touched += !inside[i] && all[i] != kPoison;
    EXPECT_EQ(touched, 0u) << "elements written outside the tensor";
    return values;
  }

 private:
  std::size_t Index(std::int64_t row, std::int64_t column) const {
    return static_cast<std::size_t>(kGuard + shift_ + row * stride_ + column);
  }
  std::int64_t rows_, columns_, stride_, shift_;
  DeviceArray<std::uint16_t> memory_;
};

struct Operands {
  Matrix a, b, c;
  Args args;
  Operands(std::int64_t m, std::int64_t n, std::int64_t k) : Operands(m, n, k, k, k, n) {}
  // Strides and a shift of all bases, in elements.
  Operands(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t lda, std::int64_t ldb,
           std::int64_t ldc, std::int64_t shift = 0)
      : a(m, k, lda, shift), b(n, k, ldb, shift), c(m, n, ldc, shift), args{m,   n,
                                                                            k,   a.data(),
                                                                            lda, b.data(),
                                                                            ldb, c.data(),
                                                                            ldc} {}
  void FillRandom() {
    a.FillRandom(0, 1);
    b.FillRandom(1, 8 / std::sqrt(static_cast<float>(args.k)));
  }
};

std::string Name(const Args& args, std::string_view kernel) {
  return std::string(kernel) + " at M " + std::to_string(args.m) + " N " + std::to_string(args.n) +
         " K " + std::to_string(args.k);
}

void Execute(const Args& args, const Plan& plan) {
  PrepareCuda(args, plan)(nullptr);
  CheckCuda(cudaDeviceSynchronize(), Name(args, plan.kernel).c_str());
}

void ExpectRight(const Args& args, std::string_view kernel) {
  const CheckResult result = CheckOnDevice(args);
  EXPECT_EQ(result.outside, 0u) << Name(args, kernel) << ": first at element " << result.first;
}

using DenseGemmSm90 = DeviceTest;

// Every kernel at shapes smaller than, equal to and just above its tiles; guards and poison
// checked.
TEST_F(DenseGemmSm90, EveryKernelEveryElementAtTileBorders) {
  for (const auto& [n, k] : {std::pair<int, int>{520, 328}, {256, 64}, {1024, 1024}}) {
    for (const int m : {1, 7, 63, 64, 65, 127, 128, 129, 257, 600}) {
      Operands x(m, n, k);
      x.FillRandom();
      Execute(x.args, {"generic"});
      ExpectRight(x.args, "generic");
      const std::vector<std::uint16_t> truth = x.c.Read();
      for (const std::string_view kernel : Sm90Kernels()) {
        x.c.Poison();
        Execute(x.args, {kernel, m % 2 == 0 ? 2 : 8, m % 3 == 0});
        EXPECT_TRUE(x.c.Read() == truth) << Name(x.args, kernel) << ": bits differ from generic's";
      }
      x.a.Read();
      x.b.Read();
    }
  }
}

// The captured (N, K) with the plan that a user gets, random operands, every element.
TEST_F(DenseGemmSm90, EveryElementAtCapturedSizes) {
  for (const auto& [n, k] : {std::pair<int, int>{12288, 4096}, {4096, 4096}, {4096, 12288}}) {
    Operands x(4125, n, k);
    x.FillRandom();
    for (const int m : {1, 7, 63, 64, 65, 127, 128, 129, 4125}) {
      Args args = x.args;
      args.m = m;
      x.c.Poison();
      RunCuda(args, nullptr);
      ExpectRight(args, ChoosePlan(args).kernel);
    }
    x.c.Read();
  }
}

// Inputs as the suite makes them: outlier channels, gated activations, integers.
TEST_F(DenseGemmSm90, GeneratorKinds) {
  constexpr std::int64_t kM = 300;
  const Family family = MakeFamily();
  for (const std::string& kind : Variants()) {
    if (kind == "magnitude") continue;  // NaN rows: below
    const Problem problem =
        MakeProblem(family, "dense_gemm_bf16_nt_n4096_k4096", {{"M", kM}}, {}, kind);
    Bundle inputs = Bundle::Allocate(family.input_layouts(problem));
    family.generate(problem, 3, inputs);
    Operands x(kM, 4096, 4096);
    const bf16 *a = inputs["A"].as<bf16>(), *b = inputs["B"].as<bf16>();
    x.a.Fill([&](std::int64_t r, std::int64_t c) { return ToFloat(a[r * 4096 + c]); });
    x.b.Fill([&](std::int64_t r, std::int64_t c) { return ToFloat(b[r * 4096 + c]); });
    RunCuda(x.args, nullptr);
    ExpectRight(x.args, kind);
  }
}

TEST_F(DenseGemmSm90, AllOnesGiveK) {
  std::vector<int> depths = {4096, 4104, 12288};
  for (int k = 8; k <= 512; k += 8) depths.push_back(k);
  for (const int k : depths) {
    Operands x(130, 264, k);
    x.a.Fill([](auto, auto) { return 1.0f; });
    x.b.Fill([](auto, auto) { return 1.0f; });
    for (const std::string_view kernel : Sm90Kernels()) {
      x.c.Poison();
      Execute(x.args, {kernel});
      const std::uint16_t expected = ToBF16(static_cast<float>(k)).bits;
      for (const std::uint16_t value : x.c.Read())
        ASSERT_EQ(value, expected) << Name(x.args, kernel);
    }
  }
}

TEST_F(DenseGemmSm90, IntegersEqualTheCpuBitForBit) {
  constexpr std::int64_t kM = 129, kN = 520, kK = 4096;
  std::vector<bf16> a(kM * kK), b(kN * kK), c(kM * kN);
  const auto value = [](std::uint64_t tensor, std::size_t i) {
    return ToBF16(static_cast<float>(Mix64(7, tensor, i) % 5) - 2);
  };
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = value(0, i);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = value(1, i);
  RunCpu({kM, kN, kK, a.data(), kK, b.data(), kK, c.data(), kN});
  Operands x(kM, kN, kK);
  x.a.Fill([&](std::int64_t r, std::int64_t k) { return ToFloat(a[r * kK + k]); });
  x.b.Fill([&](std::int64_t r, std::int64_t k) { return ToFloat(b[r * kK + k]); });
  for (const std::string_view kernel : Sm90Kernels()) {
    x.c.Poison();
    Execute(x.args, {kernel});
    const std::vector<std::uint16_t> seen = x.c.Read();
    EXPECT_EQ(std::memcmp(seen.data(), c.data(), seen.size() * 2), 0) << Name(x.args, kernel);
  }
}

// CUTLASS issue 1917: a persistent kernel that hung for a few rows of a wide, deep product.
TEST_F(DenseGemmSm90, FewRowsOfADeepProduct) {
  Operands x(16, 2560, 8192);
  x.FillRandom();
  for (const std::string_view kernel : Sm90Kernels()) {
    x.c.Poison();
    Execute(x.args, {kernel});
    ExpectRight(x.args, kernel);
  }
}

// CUTLASS issue 49: what TMA cannot address must be refused or exact. The typed call is exact, a
// kernel asked for by name refuses.
TEST_F(DenseGemmSm90, OddStridesBasesAndTails) {
  const auto check = [](Operands&& x, const std::string& reason) {
    x.FillRandom();
    RunCuda(x.args, nullptr);
    ExpectRight(x.args, "generic");
    x.c.Read();
    try {
      PrepareCuda(x.args, {"coop_128x256_2x1"});
      ADD_FAILURE() << "accepted: " << reason;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(reason));
    }
  };
  check({65, 256, 200, 200, 200, 257}, "ldc = 257 is not a multiple of 8");
  check({65, 4090, 200, 200, 200, 4096}, "N = 4090 is not a multiple of 8");
  check({65, 256, 200, 201, 200, 256}, "lda = 201 is not a multiple of 8");
  check({65, 256, 200, 200, 203, 256}, "ldb = 203 is not a multiple of 8");
  check({65, 256, 200, 200, 200, 256, 1}, "A starts 2 bytes past a multiple of 16");
  check({33, 17, 5, 5, 5, 17}, "N = 17 is not a multiple of 8");
}

// Aligned strides, but K that is no multiple of anything: TMA clips. N must be one of 8, because
// TMA stores whole units of 16 bytes.
TEST_F(DenseGemmSm90, OddDepthsWithAlignedStrides) {
  for (const auto& [n, k] : {std::pair<int, int>{4088, 197}, {8, 1}, {248, 4097}, {264, 63}}) {
    Operands x(131, n, k, (k + 15) / 8 * 8, (k + 7) / 8 * 8, n);
    x.FillRandom();
    for (const std::string_view kernel : Sm90Kernels()) {
      x.c.Poison();
      Execute(x.args, {kernel});
      ExpectRight(x.args, kernel);
      x.c.Read();
    }
  }
}

TEST_F(DenseGemmSm90, SlicedRowsOfA) {
  Operands x(200, 512, 4096, 12288, 4096, 1024);
  x.FillRandom();
  RunCuda(x.args, nullptr);
  ExpectRight(x.args, ChoosePlan(x.args).kernel);
  x.c.Read();
}

// NaN in row m of A reaches row m of C only, in row n of B column n only; -0 counts as 0.
TEST_F(DenseGemmSm90, NanStaysInItsRowAndColumn) {
  constexpr int kM = 300, kN = 520, kK = 128;
  Operands x(kM, kN, kK);
  x.a.Fill([](std::int64_t r, std::int64_t k) {
    return r == 131 && k == 77 ? NAN : (r == 5 ? -0.0f : 0x1p-60f * static_cast<float>(k % 3 + 1));
  });
  x.b.Fill([](std::int64_t r, std::int64_t k) {
    return r == 258 && k == 3 ? INFINITY : 0x1p60f * static_cast<float>((r + k) % 5 - 2);
  });
  for (const std::string_view kernel : Sm90Kernels()) {
    x.c.Poison();
    Execute(x.args, {kernel});
    const std::vector<std::uint16_t> seen = x.c.Read();
    for (int m = 0; m < kM; ++m) {
      for (int n = 0; n < kN; ++n) {
        const float value = ToFloat(bf16{seen[static_cast<std::size_t>(m * kN + n)]});
        EXPECT_EQ(!std::isfinite(value), m == 131 || n == 258) << Name(x.args, kernel);
        if (m == 5 && n != 258) EXPECT_EQ(value, 0.0f);
      }
    }
  }
}

__global__ void BusyKernel(float* memory, int count) {
  float x = memory[threadIdx.x];
  for (int i = 0; i < count; ++i) x = x * 1.0001f + 1;
  memory[threadIdx.x] = x;
}

TEST_F(DenseGemmSm90, TenRunsBesideABusyStreamAreTheSameBits) {
  Operands x(1300, 4096, 4096);
  x.FillRandom();
  cudaStream_t busy = nullptr, stream = nullptr;
  CheckCuda(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking), "cudaStreamCreate");
  CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  DeviceArray<float> memory(256);
  const auto call = PrepareCuda(x.args, ChoosePlan(x.args));
  std::vector<std::uint16_t> first;
  for (int run = 0; run < 10; ++run) {
    x.c.Poison();
    for (int i = 0; i < 20; ++i) BusyKernel<<<40, 256, 0, busy>>>(memory.data(), 20000);
    call(stream);
    CheckCuda(cudaDeviceSynchronize(), "runs beside a busy stream");
    if (run == 0) first = x.c.Read();
    EXPECT_TRUE(x.c.Read() == first) << "run " << run;
  }
  ExpectRight(x.args, ChoosePlan(x.args).kernel);
  CheckCuda(cudaStreamDestroy(busy), "cudaStreamDestroy");
  CheckCuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

// Offsets past 2^31 elements: 200000 x 12288 is 2.5e9. Checked where they begin and at the end.
TEST_F(DenseGemmSm90, MoreThanTwoToTheThirtyOneElements) {
  constexpr std::int64_t kM = 200000, kN = 12288, kK = 4096;
  std::size_t free = 0, total = 0;
  CheckCuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  if (free < std::size_t{10} << 30) GTEST_SKIP() << "needs 10 GiB, " << free << " bytes are free";
  Operands small(1024, kN, kK);
  small.FillRandom();
  DeviceArray<std::uint16_t> a(kM * kK), c(kM * kN);
  for (std::int64_t row = 0; row < kM; row += 1000) {  // other rows of `small` every time
    CheckCuda(cudaMemcpy(a.data() + row * kK, small.args.a + row / 1000 % 24 * kK, 1000 * kK * 2,
                         cudaMemcpyDeviceToDevice),
              "cudaMemcpy");
  }
  CheckCuda(cudaMemset(c.data(), 0xFF, c.size() * 2), "cudaMemset");
  Args args{kM, kN,           kK, reinterpret_cast<const bf16*>(a.data()),
            kK, small.args.b, kK, reinterpret_cast<bf16*>(c.data()),
            kN};
  RunCuda(args, nullptr);
  const std::int64_t border = (std::int64_t{1} << 31) / kN;  // the row that crosses
  for (const std::int64_t row : {std::int64_t{0}, border - 32, kM - 64}) {
    Args part = args;
    part.m = 64;
    part.a += row * kK;
    part.c += row * kN;
    ExpectRight(part, "rows from " + std::to_string(row));
  }
}

TEST_F(DenseGemmSm90, NothingToDo) {
  Args args;
  args.n = args.ldc = 64;
  args.k = args.lda = args.ldb = 64;
  DeviceArray<std::uint16_t> b(64 * 64);
  args.b = reinterpret_cast<const bf16*>(b.data());
  RunCuda(args, nullptr);  // M = 0
  CheckCuda(cudaDeviceSynchronize(), "M = 0");
  Operands x(9, 24, 0, 8, 8, 24);
  RunCuda(x.args, nullptr);  // K = 0 writes zeros
  for (const std::uint16_t value : x.c.Read()) EXPECT_EQ(value, 0);
}

// No GPU needed: arguments are checked before the device is asked.
TEST(DenseGemmSm90Plan, RefusesBadArgumentsAndUnknownKernels) {
  alignas(16) static bf16 memory[3][64 * 64];
  Args args{64, 64, 64, memory[0], 64, memory[1], 64, memory[2], 64};
  const auto refusal = [](const Args& bad, const Plan& plan) -> std::string {
    try {
      PrepareCuda(bad, plan);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  Args bad = args;
  bad.lda = 63;
  EXPECT_THAT(refusal(bad, {}), HasSubstr("lda = 63"));
  bad = args;
  bad.c = memory[0];
  EXPECT_THAT(refusal(bad, {}), HasSubstr("C overlaps A"));
  EXPECT_THAT(refusal(args, {"coop_1x1"}), HasSubstr("no kernel named coop_1x1"));
  EXPECT_THAT(refusal(args, {"coop_128x256_2x1", 0}), HasSubstr("band = 0"));
  EXPECT_EQ(WhyNotTma(args), "");
  EXPECT_NE(ChoosePlan(args).kernel, "generic");
  args.lda = 72, args.m = 50;
  EXPECT_EQ(WhyNotTma(args), "");
}

}  // namespace
}  // namespace assay::dense_gemm_bf16_nt
