// Safetensors: round trips, and every malformed form refused with a sentence of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "io/safetensors.h"
#include "io/sha256.h"

namespace assay {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class SafetensorsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("assay-safetensors-" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }

  fs::path folder_;
};

// A file with this header (its length is filled in) and this many bytes of data: 0, 1, 2, ...
std::string FileBytes(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  bytes += header;
  for (std::size_t i = 0; i < data_bytes; ++i) bytes += static_cast<char>(i);
  return bytes;
}

std::span<const std::byte> AsBytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

void ExpectRefused(const std::string& bytes, const std::string& part) {
  try {
    SafetensorsFile::Parse(AsBytes(bytes), "f.safetensors");
    ADD_FAILURE() << "accepted although: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::kInput);
    const std::string message = error.what();
    EXPECT_THAT(message, testing::StartsWith("f.safetensors: "));
    EXPECT_THAT(message, HasSubstr(part));
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

TEST(Safetensors, ReadsTensorsInOrderOfTheirData) {
  const std::string bytes = FileBytes(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},)"
      R"("a":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},)"
      R"("none":{"dtype":"I64","shape":[0,7],"data_offsets":[6,6]},)"
      R"("scalar":{"dtype":"BF16","shape":[],"data_offsets":[6,8]}})",
      8);
  const SafetensorsFile file = SafetensorsFile::Parse(AsBytes(bytes), "f");
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[0].dtype, DType::kF32);
  EXPECT_EQ(file.tensors()[0].shape, (Shape{1, 1}));
  EXPECT_EQ(file.tensors()[1].name, "b");
  EXPECT_EQ(std::to_integer<int>(file.tensors()[1].data[1]), 5);
  EXPECT_EQ(file.find("none")->elements(), 0);
  EXPECT_EQ(file.find("scalar")->elements(), 1);
  EXPECT_EQ(file.find("__metadata__"), nullptr);
  EXPECT_EQ(file.find("x"), nullptr);
}

TEST(Safetensors, AnEmptyHeaderIsAFileWithoutTensors) {
  EXPECT_TRUE(SafetensorsFile::Parse(AsBytes(FileBytes("{}", 0)), "f").tensors().empty());
}

TEST(Safetensors, RefusesBrokenFraming) {
  ExpectRefused("", "at least 8 bytes, this one has 0");
  ExpectRefused("1234567", "at least 8 bytes, this one has 7");
  std::string cut = FileBytes("{}", 0);
  cut.pop_back();
  ExpectRefused(cut, "the header claims 2 bytes, but the file has 1");
  ExpectRefused(std::string(8, '\xff'), "the header claims 18446744073709551615 bytes");
}

TEST(Safetensors, RefusesBrokenHeaders) {
  ExpectRefused(FileBytes("{", 0), "the header is malformed");
  ExpectRefused(FileBytes(std::string("\0\0", 2), 0), "the header is malformed");
  ExpectRefused(FileBytes("[]", 0), "the header is not a JSON object");
  ExpectRefused(FileBytes(R"({"a":[]})", 0), "tensor 'a' is not described by a JSON object");
  const std::string entry = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  ExpectRefused(FileBytes("{\"a\":" + entry + ",\"a\":" + entry + "}", 1), "key 'a' appears twice");
}

void ExpectEntryRefused(const std::string& entry, std::size_t data_bytes, const std::string& part) {
  ExpectRefused(FileBytes("{\"a\":" + entry + "}", data_bytes), part);
}

TEST(Safetensors, RefusesBrokenEntries) {
  ExpectEntryRefused(R"({"shape":[1],"data_offsets":[0,1]})", 1, "tensor 'a' has no dtype");
  ExpectEntryRefused(R"({"dtype":3,"shape":[1],"data_offsets":[0,1]})", 1, "has no dtype");
  ExpectEntryRefused(R"({"dtype":"C64","shape":[1],"data_offsets":[0,1]})", 1,
                     "unsupported dtype 'C64'");
  ExpectEntryRefused(R"({"dtype":"U8","data_offsets":[0,1]})", 1, "has no shape");
  ExpectEntryRefused(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})", 1, "dimension -1");
  ExpectEntryRefused(R"({"dtype":"U8","shape":[1.5],"data_offsets":[0,1]})", 1, "dimension 1.5");
  ExpectEntryRefused(R"({"dtype":"U8","shape":["1"],"data_offsets":[0,1]})", 1, "dimension \"1\"");
  ExpectEntryRefused(R"({"dtype":"U8","shape":[4611686018427387904,4],"data_offsets":[0,1]})", 1,
                     "too large");
  // 2^61 elements of 8 bytes wrap to 0 bytes in 64 bits.
  ExpectEntryRefused(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})", 0,
                     "too large");
  ExpectEntryRefused(R"({"dtype":"U8","shape":[1]})", 1, "no data_offsets");
  ExpectEntryRefused(R"({"dtype":"U8","shape":[1],"data_offsets":[0]})", 1, "no data_offsets");
  ExpectEntryRefused(R"({"dtype":"U8","shape":[1],"data_offsets":[-1,0]})", 1, "no data_offsets");
  ExpectEntryRefused(R"({"dtype":"U8","shape":[1],"data_offsets":[0.0,1]})", 1, "no data_offsets");
}

TEST(Safetensors, RefusesOffsetsThatDoNotFit) {
  ExpectEntryRefused(R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})", 1,
                     "lies at bytes 0..2, but the file has 1 bytes of data");
  ExpectEntryRefused(R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})", 1, "lies at bytes 1..0");
  ExpectEntryRefused(R"({"dtype":"U8","shape":[1],"data_offsets":[18446744073709551615,0]})", 1,
                     "lies at bytes 18446744073709551615..0");
  // A tensor shorter than its shape is an error, never padded; so is a longer one.
  ExpectEntryRefused(R"({"dtype":"BF16","shape":[2,3],"data_offsets":[0,10]})", 10,
                     "of bfloat16 [2,3] needs 12 bytes, but holds 10");
  ExpectEntryRefused(R"({"dtype":"BF16","shape":[2],"data_offsets":[0,5]})", 5, "but holds 5");
  ExpectEntryRefused(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})", 3,
                     "2 bytes at the end belong to no tensor");
  ExpectEntryRefused(R"({"dtype":"U8","shape":[1],"data_offsets":[2,3]})", 3,
                     "tensor 'a' follows a gap");
  ExpectRefused(FileBytes(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                          R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                          3),
                "tensor 'b' overlaps");
}

TEST_F(SafetensorsTest, WritesWhatItReads) {
  const std::vector<TensorLayout> layouts = {
      {"q", DType::kBF16, {3, 5}},  {"packed", DType::kE2M1, {2, 6}}, {"scale", DType::kUE8M0, {7}},
      {"f16", DType::kF16, {1}},    {"e4m3", DType::kE4M3, {9}},      {"e5m2", DType::kE5M2, {1}},
      {"f32", DType::kF32, {2}},    {"f64", DType::kF64, {2}},        {"i32", DType::kI32, {3}},
      {"i64", DType::kI64, {1, 1}}, {"u8", DType::kU8, {3}},          {"mask", DType::kBool, {4}},
      {"i16", DType::kI16, {5}},    {"i8", DType::kI8, {3}},          {"empty", DType::kF32, {0}},
  };
  Bundle bundle = Bundle::Allocate(layouts);
  std::uint8_t next = 1;
  for (Tensor& tensor : bundle.tensors()) {
    for (std::size_t i = 0; i < tensor.bytes(); ++i) tensor.data[i] = std::byte{next++};
  }
  WriteSafetensors(Path("x.safetensors"), bundle.tensors());
  const SafetensorsFile file = SafetensorsFile::Open(Path("x.safetensors"));
  ASSERT_EQ(file.tensors().size(), layouts.size());
  Bundle copy = Bundle::Allocate(layouts);
  for (Tensor& tensor : copy.tensors()) {
    file.ReadInto(tensor.name, tensor);
    const Tensor& original = bundle[tensor.name];
    EXPECT_EQ(file.find(tensor.name)->dtype, original.dtype);
    EXPECT_EQ(std::memcmp(tensor.data, original.data, original.bytes()), 0) << tensor.name;
  }
  EXPECT_EQ(copy.CheckRedZones(), std::nullopt);
  // The data start on a multiple of 8, so that readers may map them.
  EXPECT_EQ(SafetensorsPrefix(bundle.tensors()).size() % 8, 0u);
}

TEST_F(SafetensorsTest, ReadIntoChecksDtypeAndShape) {
  const std::string bytes =
      FileBytes(R"({"t":{"dtype":"U8","shape":[2,4],"data_offsets":[0,8]}})", 8);
  const SafetensorsFile file = SafetensorsFile::Parse(AsBytes(bytes), "f");
  Bundle targets = Bundle::Allocate({{"wrong_shape", DType::kU8, {4, 2}},
                                     {"wrong_dtype", DType::kBool, {2, 4}},
                                     {"packed", DType::kE2M1, {2, 8}},
                                     {"scale", DType::kUE8M0, {2, 4}},
                                     {"odd", DType::kE2M1, {2, 7}}});
  EXPECT_THROW(file.ReadInto("t", targets["wrong_shape"]), Error);
  EXPECT_THROW(file.ReadInto("t", targets["wrong_dtype"]), Error);
  EXPECT_THROW(file.ReadInto("other", targets["scale"]), Error);
  EXPECT_THROW(file.ReadInto("t", targets["odd"]), Error);
  file.ReadInto("t", targets["packed"]);
  EXPECT_EQ(std::to_integer<int>(targets["packed"].data[7]), 7);
  file.ReadInto("t", targets["scale"]);
  EXPECT_EQ(std::to_integer<int>(targets["scale"].data[3]), 3);
}

TEST_F(SafetensorsTest, BlobNamesAreDigests) {
  const std::string bytes =
      FileBytes(R"({"tensor":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", 3);
  const std::string good = Path(Sha256Hex(bytes) + ".safetensors");
  const std::string bad = Path(std::string(64, 'a') + ".safetensors");
  for (const std::string& path : {good, bad}) std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(SafetensorsFile::Open(good).tensors().size(), 1u);
  try {
    SafetensorsFile::Open(bad);
    ADD_FAILURE() << "a blob with another content was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("SHA-256 " + Sha256Hex(bytes)));
  }
}

TEST_F(SafetensorsTest, MissingEmptyAndIrregularFiles) {
  EXPECT_THROW(SafetensorsFile::Open(Path("none")), Error);
  EXPECT_THROW(SafetensorsFile::Open(folder_.string()), Error);
  std::ofstream(Path("empty"));
  EXPECT_THROW(SafetensorsFile::Open(Path("empty")), Error);
}

TEST(Safetensors, WriterRefusesNamesThatCannotBeRead) {
  Tensor tensor{"__metadata__", DType::kU8, {0}, nullptr};
  EXPECT_THROW(SafetensorsPrefix(std::span(&tensor, 1)), Error);
  const std::vector<Tensor> twice = {{"a", DType::kU8, {0}, nullptr},
                                     {"a", DType::kU8, {0}, nullptr}};
  EXPECT_THROW(SafetensorsPrefix(twice), Error);
}

}  // namespace
}  // namespace assay
