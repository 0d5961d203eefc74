// Bundles: layout, guard bytes on both sides, poison, memory shared between processes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/tensor.h"

namespace assay {
namespace {

const std::vector<TensorLayout> kLayouts = {
    {"a", DType::kBF16, {3, 5}},  {"empty", DType::kF32, {0, 7}},  {"packed", DType::kE2M1, {3, 3}},
    {"page", DType::kU8, {4096}}, {"past", DType::kF64, {513, 1}}, {"scalar", DType::kI64, {}},
};

TEST(Shape, CountsAndText) {
  EXPECT_EQ(ElementCount({}), 1);
  EXPECT_EQ(ElementCount({3, 0, 5}), 0);
  EXPECT_EQ(ElementCount({4096, 12288}), 50331648);
  EXPECT_EQ(ElementCount({1LL << 30, 1LL << 30}), 1LL << 60);
  EXPECT_EQ(ShapeText({4096, 12288}), "[4096,12288]");
  EXPECT_EQ(ShapeText({}), "[]");
}

TEST(Shape, RefusesNegativeAndHugeOnes) {
  for (const Shape& shape :
       {Shape{-1}, Shape{2, -3}, Shape{1LL << 61}, Shape{1LL << 40, 1LL << 40}}) {
    try {
      ElementCount(shape);
      ADD_FAILURE() << ShapeText(shape);
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::kInput);
      EXPECT_NE(std::string(error.what()).find(ShapeText(shape)), std::string::npos);
    }
  }
}

TEST(Bundle, TensorsStartOnPagesBetweenRedZones) {
  const Bundle bundle = Bundle::Allocate(kLayouts);
  const std::byte* previous_end = nullptr;
  for (const Tensor& tensor : bundle.tensors()) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data) % 4096, 0u) << tensor.name;
    for (std::size_t i = 0; i < tensor.bytes(); ++i) EXPECT_EQ(tensor.data[i], std::byte{0});
    if (previous_end != nullptr) {
      EXPECT_GE(tensor.data - previous_end, static_cast<std::ptrdiff_t>(2 * kRedZoneBytes));
    }
    previous_end = tensor.data + tensor.bytes();
  }
  EXPECT_EQ(bundle.bytes(), 30u + 0 + 5 + 4096 + 513 * 8 + 8);
  // 2 red zones each, payloads rounded up to pages: 1 + 0 + 1 + 1 + 2 + 1.
  EXPECT_EQ(Bundle::ArenaBytes(kLayouts), (6 * 2 + 6) * 4096u);
  EXPECT_EQ(bundle.fd(), -1);
  EXPECT_EQ(bundle.CheckRedZones(), std::nullopt);
}

TEST(Bundle, FindsByNameAndChecksTypes) {
  Bundle bundle = Bundle::Allocate(kLayouts);
  EXPECT_TRUE(bundle.has("scalar"));
  EXPECT_FALSE(bundle.has("scala"));
  EXPECT_EQ(bundle.find("x"), nullptr);
  EXPECT_THROW(bundle["x"], Error);
  EXPECT_NO_THROW(bundle["a"].as<bf16>());
  EXPECT_THROW(bundle["a"].as<float>(), Error);
  EXPECT_EQ(bundle.layouts().size(), kLayouts.size());
  EXPECT_EQ(bundle.layouts()[2].shape, (Shape{3, 3}));
}

TEST(Bundle, WithoutTensors) {
  Bundle bundle = Bundle::Allocate({});
  bundle.Poison();
  EXPECT_EQ(bundle.CheckRedZones(), std::nullopt);
  EXPECT_EQ(bundle.bytes(), 0u);
}

// Every single byte around every tensor is guarded, right from its first and last element.
TEST(Bundle, RedZonesNoticeEveryByte) {
  Bundle bundle = Bundle::Allocate(kLayouts);
  const auto expect_noticed = [&](Tensor& tensor, std::byte& victim, const std::string& where) {
    const std::byte original = victim;
    victim ^= std::byte{1};
    const auto report = bundle.CheckRedZones();
    ASSERT_TRUE(report) << tensor.name << ' ' << where;
    EXPECT_EQ(*report, "tensor '" + tensor.name + "': byte " + where + " was overwritten");
    victim = original;
  };
  for (Tensor& tensor : bundle.tensors()) {
    for (const std::size_t distance : {1u, 2u, 100u, 4096u}) {
      expect_noticed(tensor, *(tensor.data - distance),
                     std::to_string(distance) + " before its start");
    }
    for (const std::size_t distance : {0u, 1u, 7u, 4095u}) {
      expect_noticed(tensor, tensor.data[tensor.bytes() + distance],
                     std::to_string(distance) + " behind its end");
    }
  }
  EXPECT_EQ(bundle.CheckRedZones(), std::nullopt);
  bundle["a"].data[-1] = std::byte{0};
  bundle.WriteRedZones();
  EXPECT_EQ(bundle.CheckRedZones(), std::nullopt);
}

TEST(Bundle, PoisonIsNaNForFloatsAndLoudForIntegers) {
  Bundle bundle = Bundle::Allocate({{"bf16", DType::kBF16, {9}},
                                    {"f16", DType::kF16, {9}},
                                    {"e4m3", DType::kE4M3, {9}},
                                    {"e5m2", DType::kE5M2, {9}},
                                    {"f32", DType::kF32, {9}},
                                    {"f64", DType::kF64, {9}},
                                    {"i32", DType::kI32, {9}},
                                    {"i64", DType::kI64, {9}},
                                    {"u8", DType::kU8, {9}}});
  bundle.Poison();
  for (int i = 0; i < 9; ++i) {
    EXPECT_TRUE(std::isnan(ToFloat(bundle["bf16"].as<bf16>()[i])));
    EXPECT_TRUE(std::isnan(ToFloat(bundle["f16"].as<f16>()[i])));
    EXPECT_TRUE(std::isnan(ToFloat(bundle["e4m3"].as<e4m3>()[i])));
    EXPECT_TRUE(std::isnan(ToFloat(bundle["e5m2"].as<e5m2>()[i])));
    EXPECT_TRUE(std::isnan(bundle["f32"].as<float>()[i]));
    EXPECT_TRUE(std::isnan(bundle["f64"].as<double>()[i]));
    EXPECT_EQ(bundle["i32"].as<std::int32_t>()[i], 0x7F7F7F7F);
    EXPECT_EQ(bundle["i64"].as<std::int64_t>()[i], 0x7F7F7F7F7F7F7F7FLL);
    EXPECT_EQ(bundle["u8"].as<std::uint8_t>()[i], 0x7F);
  }
  EXPECT_EQ(bundle.CheckRedZones(), std::nullopt);
}

TEST(Bundle, SharedMemoryIsSeenByTheOtherProcess) {
  Bundle bundle = Bundle::AllocateShared(kLayouts);
  bundle["past"].as<double>()[512] = 2.5;
  const pid_t child = fork();
  if (child == 0) {
    // A mapping of its own, as a worker makes from the descriptor it was given.
    Bundle mapped = Bundle::MapShared(kLayouts, dup(bundle.fd()));
    const bool same = mapped["past"].as<double>()[512] == 2.5;
    mapped["a"].as<bf16>()[14] = ToBF16(3.0f);
    mapped["empty"].data[0] = std::byte{1};  // behind a tensor without elements
    _exit(same && mapped["a"].data != bundle["a"].data ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ToFloat(bundle["a"].as<bf16>()[14]), 3.0f);
  EXPECT_EQ(bundle.CheckRedZones(), "tensor 'empty': byte 0 behind its end was overwritten");
}

TEST(Bundle, MemoryBehindAReadOnlyDescriptorCanBeReadAndNotWritten) {
  Bundle bundle = Bundle::AllocateShared(kLayouts);
  bundle["past"].as<double>()[512] = 2.5;
  const std::string path = "/proc/self/fd/" + std::to_string(bundle.fd());
  Bundle mapped = Bundle::MapShared(kLayouts, open(path.c_str(), O_RDONLY));
  EXPECT_EQ(mapped["past"].as<double>()[512], 2.5);
  EXPECT_EQ(mapped.CheckRedZones(), std::nullopt);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, [](int) { _exit(7); });
    mapped["past"].as<double>()[512] = 1;
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(bundle["past"].as<double>()[512], 2.5);
}

TEST(Bundle, HolesOfSharedMemoryStayUntouched) {
  Bundle shared =
      Bundle::AllocateShared({{"a", DType::kU8, {100}}, {"pool", DType::kU8, {1LL << 36}}});
  const Tensor pool = shared["pool"];
  EXPECT_TRUE(shared.TouchedParts(pool).empty());
  pool.data[(1LL << 35) + 5000] = std::byte{1};
  using Parts = std::vector<std::pair<std::size_t, std::size_t>>;
  EXPECT_EQ(shared.TouchedParts(pool), (Parts{{(1ULL << 35) + 4096, (1ULL << 35) + 8192}}));
  shared.PunchOut();
  EXPECT_TRUE(shared.TouchedParts(pool).empty());
  EXPECT_EQ(pool.data[(1LL << 35) + 5000], std::byte{0});
  const Bundle own = Bundle::Allocate({{"a", DType::kU8, {100}}});
  EXPECT_EQ(own.TouchedParts(own["a"]), (Parts{{0, 100}}));
}

TEST(Bundle, MovesAndCopiesKeepTheMemory) {
  Bundle original = Bundle::Allocate(kLayouts);
  std::byte* data = original["a"].data;
  Bundle copy = original;
  original = Bundle();
  EXPECT_EQ(copy["a"].data, data);
  const Bundle moved = std::move(copy);
  EXPECT_EQ(moved["a"].data, data);
  EXPECT_EQ(moved.CheckRedZones(), std::nullopt);
}

TEST(Bundle, TooLargeIsBadInputNamingTheBytes) {
  const std::vector<TensorLayout> huge = {{"huge", DType::kF32, {1LL << 50}}};
  for (const bool shared : {false, true}) {
    try {
      shared ? Bundle::AllocateShared(huge) : Bundle::Allocate(huge);
      ADD_FAILURE() << "allocated 4 PiB";
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::kInput);
      EXPECT_NE(std::string(error.what()).find("4503599627378688"), std::string::npos)
          << error.what();
    }
  }
}

TEST(Bundle, RefusesAMappingOfTheWrongSize) {
  Bundle small = Bundle::AllocateShared({{"a", DType::kU8, {1}}});
  EXPECT_THROW(Bundle::MapShared(kLayouts, dup(small.fd())), Error);
}

}  // namespace
}  // namespace assay
