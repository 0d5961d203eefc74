// The JSON parser's extras (columns, duplicate keys, depth, skipped members) and file errors.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/file.h"
#include "io/json.h"

namespace assay {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

JsonError ErrorOf(std::string_view text) {
  try {
    ParseJson(text);
  } catch (const JsonError& error) {
    return error;
  }
  ADD_FAILURE() << "accepted: " << text.substr(0, 80);
  return JsonError(-1, "");
}

TEST(Json, ParsesWhatTheLibraryParses) {
  for (const char* text :
       {R"({"a":[1,-2,2.5,"x",null,true,{"b":[[],{}]}],"c":{"d":"e\u00e9"}})", "[]", "{}", "7",
        "\"text\"", "null", "[[1,2],[3,[4,{\"k\":[5]}]],6]", "18446744073709551615"}) {
    EXPECT_EQ(ParseJson(text), json::parse(text)) << text;
  }
}

TEST(Json, ErrorsNameTheColumn) {
  EXPECT_EQ(ErrorOf(R"({"a": 1,, "b": 2})").column(), 9);
  EXPECT_EQ(ErrorOf(R"({"a": tru})").column(), 10);
  EXPECT_EQ(ErrorOf(R"({"a": 1)").column(), 8);
  EXPECT_EQ(ErrorOf("").column(), 1);
  EXPECT_EQ(ErrorOf(R"({"a": 1} x)").column(), 10);
  EXPECT_THAT(ErrorOf(R"({"a": 1)").what(), HasSubstr("column 8: syntax error"));
  EXPECT_THAT(ErrorOf("[1e999]").what(), HasSubstr("number overflow"));
  EXPECT_GT(ErrorOf("{\"a\": \"\xff\xfe\"}").column(), 0);
}

TEST(Json, MessagesStayShortAndPrintable) {
  const std::string detail = ErrorOf("[\"" + std::string(1 << 20, 'x')).detail();
  EXPECT_LT(detail.size(), 200u);
  const std::string binary = ErrorOf("[\"\xff\x01").detail();
  for (const char c : binary) {
    EXPECT_GE(c, ' ');
    EXPECT_LE(c, '~');
  }
}

TEST(Json, RefusesDuplicateKeysAndDeepNesting) {
  EXPECT_THAT(ErrorOf(R"({"axes": {}, "axes": {}})").what(), HasSubstr("'axes' appears twice"));
  EXPECT_THAT(ErrorOf(std::string(200000, '[')).what(), HasSubstr("nested deeper"));
  EXPECT_NO_THROW(ParseJson(std::string(100, '[') + std::string(100, ']')));
}

TEST(Json, SkippedMembersAreLeftOutButStillChecked) {
  const std::array<std::string_view, 2> skipped{"env", "prompt"};
  const json parsed = ParseJson(
      R"({"a":{"prompt":"x","b":1},"env":{"c":[1,{"prompt":2}],"a":3},"d":[{"env":[]},2]})",
      skipped);
  EXPECT_EQ(parsed, json::parse(R"({"a":{"b":1},"d":[{},2]})"));
  EXPECT_THROW(ParseJson(R"({"env": [1, })", skipped), JsonError);
}

TEST(File, ErrorsNameTheFile) {
  EXPECT_THAT([] { ReadFile("/nowhere/suite.jsonl"); },
              testing::ThrowsMessage<Error>(HasSubstr("'/nowhere/suite.jsonl': No such file")));
  EXPECT_THAT([] { ReadFile("/tmp"); }, testing::ThrowsMessage<Error>(HasSubstr("Is a directory")));
  EXPECT_THAT([] { WriteFile("/nowhere/out.jsonl", "x"); },
              testing::ThrowsMessage<Error>(HasSubstr("cannot write '/nowhere/out.jsonl'")));
}

TEST(File, WritesReplaceTheWholeFile) {
  const auto path =
      std::filesystem::temp_directory_path() / ("assay_file_test_" + std::to_string(::getpid()));
  WriteFile(path, std::string(10000, 'a'));
  WriteFile(path, "short");
  EXPECT_EQ(ReadFile(path), "short");
  std::filesystem::remove(path);
}

TEST(File, APipeIsWrittenToAndStaysOne) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("assay_pipe_" + std::to_string(::getpid()));
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  WriteFile(path, "through");
  char got[16] = {};
  EXPECT_EQ(::read(reader, got, sizeof got), 7);
  EXPECT_STREQ(got, "through");
  EXPECT_TRUE(std::filesystem::is_fifo(path));
  ::close(reader);
  std::filesystem::remove(path);
}

TEST(File, FullDiskIsADeviceFault) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  // The temporary file lies beside the target, so a link in a writable folder stands for the disk.
  const auto folder =
      std::filesystem::temp_directory_path() / ("assay_full_disk_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const std::string path = folder / "out";
  std::filesystem::create_symlink("/dev/full", path + ".tmp" + std::to_string(::getpid()));
  try {
    WriteFile(path, "content");
    ADD_FAILURE() << "no error on a full disk";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::kDevice);
    EXPECT_THAT(error.what(), HasSubstr("No space left"));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace assay
