// Known answers of FIPS 180-4 and agreement of one-shot and partwise hashing.
#include <gtest/gtest.h>

#include "io/sha256.h"

namespace assay {
namespace {

TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(Sha256Hex(std::string_view()),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Sha256Hex(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PartsGiveTheHashOfTheWhole) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 37);
  for (const std::size_t cut : {0, 1, 55, 56, 63, 64, 65, 500, 1000}) {
    Sha256 hash;
    hash.Update(std::string_view(text).substr(0, cut)).Update(std::string_view(text).substr(cut));
    EXPECT_EQ(hash.Finish(), Sha256Of(text)) << cut;
  }
  EXPECT_EQ(Sha256Hex(std::as_bytes(std::span(text))), Sha256Hex(text));
}

}  // namespace
}  // namespace assay
