// Identity and change marks of inputs: every byte counts, holes that were merely read do not.
#include <gtest/gtest.h>

#include "io/sha256.h"
#include "replay/content_sets.h"

namespace assay {
namespace {

Bundle Pool() { return Bundle::AllocateShared({{"pool", DType::kU8, {1 << 20}}}); }

TEST(ChangeMarks, EveryByteCountsAndReadingDoesNot) {
  const Bundle bundle = Pool();
  const Tensor& pool = bundle["pool"];
  pool.data[300000] = std::byte{1};
  const auto before = ChangeMarks(bundle);
  const auto hash = HashTensors(bundle, true);
  const std::byte read = static_cast<volatile std::byte*>(pool.data)[700000];  // touches a hole
  EXPECT_EQ(read, std::byte{0});
  EXPECT_EQ(ChangeMarks(bundle), before);
  EXPECT_EQ(HashTensors(bundle, true), hash);
  pool.data[700000] = std::byte{1};
  EXPECT_NE(ChangeMarks(bundle), before);
  EXPECT_NE(HashTensors(bundle, true), hash);
  pool.data[700000] = std::byte{0};
  EXPECT_EQ(ChangeMarks(bundle), before);
  pool.data[300000] = std::byte{0};
  EXPECT_NE(ChangeMarks(bundle), before);
}

TEST(ChangeMarks, TheSameBytesElsewhereAreAnotherContent) {
  const Bundle first = Pool(), second = Pool();
  first["pool"].data[4096] = std::byte{1};
  second["pool"].data[8192] = std::byte{1};
  EXPECT_NE(ChangeMarks(first), ChangeMarks(second));
  EXPECT_NE(HashTensors(first, true), HashTensors(second, true));
  EXPECT_NE(HashTensors(first), HashTensors(second));
}

TEST(HashTensors, DenseIdentityIsSha256OfTypeShapeAndBytes) {
  const Bundle bundle = Bundle::Allocate({{"x", DType::kU8, {3}}});
  bundle["x"].data[0] = std::byte{'a'};
  bundle["x"].data[1] = std::byte{'b'};
  bundle["x"].data[2] = std::byte{'c'};
  EXPECT_EQ(HashTensors(bundle)[0].second, Sha256Hex(std::string_view("uint8[3]abc")));
}

}  // namespace
}  // namespace assay
