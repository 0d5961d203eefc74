// Text safety, number formats and the table printer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "base/error.h"
#include "report/table.h"
#include "report/text.h"

namespace assay {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(Printable, KeepsTextAndShowsWhatHides) {
  EXPECT_EQ(Printable("plain µ 語"), "plain µ 語");
  EXPECT_EQ(Printable("a\nb\tc\x1b[31m"), "a\\nb\\tc\\x1b[31m");
  EXPECT_EQ(Printable("a\u202Eb\uFEFF"), "a\\u202eb\\ufeff");
  EXPECT_EQ(Printable(std::string_view("\0x", 2)), "\\x00x");
}

TEST(Printable, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(Printable("a\xff"), "a\uFFFD");
  EXPECT_EQ(Printable("\xc3"), "\uFFFD");                      // truncated
  EXPECT_EQ(Printable("\xc0\xaf"), "\uFFFD\uFFFD");            // overlong
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");  // surrogate
  EXPECT_EQ(Printable("\xf4\x90\x80\x80x").substr(12), "x");   // above U+10FFFF
  EXPECT_EQ(Printable("\xf0\x9f\x94\xa5"), "\xf0\x9f\x94\xa5");
}

TEST(DisplayWidth, CountsCells) {
  EXPECT_EQ(DisplayWidth("abc"), 3);
  EXPECT_EQ(DisplayWidth("語"), 2);
  EXPECT_EQ(DisplayWidth("e\u0301"), 1);
  EXPECT_EQ(DisplayWidth("🔥"), 2);
}

TEST(Shorten, CutsBetweenCharactersAndFits) {
  EXPECT_EQ(ShortenEnd("abcdef", 4), "abc…");
  EXPECT_EQ(ShortenMiddle("noncausal_dense_attention_h32_d128", 20), "noncausal…n_h32_d128");
  EXPECT_EQ(ShortenMiddle("abc", 3), "abc");
  const std::string wide = "語語語語語語";
  for (int width = 0; width < 14; ++width) {
    EXPECT_LE(DisplayWidth(ShortenEnd(wide, width)), width);
    EXPECT_LE(DisplayWidth(ShortenMiddle(wide, width)), width);
    EXPECT_EQ(Printable(ShortenMiddle(wide, width)), ShortenMiddle(wide, width));
  }
}

TEST(Wrap, LosesNothing) {
  EXPECT_THAT(Wrap("one two three", 7), ElementsAre("one two", "three"));
  EXPECT_THAT(Wrap("grouped_gemm_fp8", 9), ElementsAre("grouped_", "gemm_fp8"));
  EXPECT_THAT(Wrap("abcdefgh", 3), ElementsAre("abc", "def", "gh"));
  EXPECT_THAT(Wrap("語語", 1), ElementsAre("語", "語"));
  EXPECT_THAT(Wrap("", 5), ElementsAre(""));
}

TEST(Format, Times) {
  EXPECT_EQ(FormatTime(0), "0.00 ns");
  EXPECT_EQ(FormatTime(12.34), "12.3 ns");
  EXPECT_EQ(FormatTime(999.4), "999 ns");
  EXPECT_EQ(FormatTime(999.6), "1.00 us");
  EXPECT_EQ(FormatTime(12345), "12.3 us");
  EXPECT_EQ(FormatTime(999.6e3), "1.00 ms");
  EXPECT_EQ(FormatTime(1.834e6), "1.83 ms");
  EXPECT_EQ(FormatTime(2e9), "2.00 s");
  EXPECT_EQ(FormatTime(NAN), "-");
}

TEST(Format, SharesNeverRoundToNoneOrAll) {
  EXPECT_EQ(FormatShare(0), "0 %");
  EXPECT_EQ(FormatShare(1e-6), "<0.1 %");
  EXPECT_EQ(FormatShare(0.031), "3.1 %");
  EXPECT_EQ(FormatShare(0.99999), ">99.9 %");
  EXPECT_EQ(FormatShare(1), "100 %");
}

TEST(Format, FactorsCountsBytesRates) {
  EXPECT_EQ(FormatFactor(0.97), "0.97");
  EXPECT_EQ(FormatFactor(12.44), "12.4");
  EXPECT_EQ(FormatFactor(153.2), "153");
  EXPECT_EQ(FormatFactor(0.0012), "0.0012");
  EXPECT_EQ(FormatFactor(INFINITY), "-");
  EXPECT_EQ(FormatCount(1104), "1,104");
  EXPECT_EQ(FormatCount(-1234567), "-1,234,567");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(107055218688.0), "99.7 GiB");
  EXPECT_EQ(FormatRate(4.27e12, "B/s"), "4.27 TB/s");
}

TEST(Format, PairsShowTheDifference) {
  EXPECT_EQ(FormatPair(1.25, 1.5), std::pair(std::string("1.25"), std::string("1.5")));
  EXPECT_EQ(FormatPair(1.0, 1.0000001).second, "1.0000001");
  EXPECT_EQ(FormatPair(1.0, 1.0).second, "1");
  EXPECT_EQ(FormatPair(NAN, INFINITY), std::pair(std::string("nan"), std::string("inf")));
}

Table Sample() {
  Table table({{.title = "name", .overflow = Overflow::kMiddle, .min_width = 6, .shrink = 1},
               {.title = "time", .align = Align::kRight}});
  table.AddHeading("group one");
  table.Add({"alpha", Cell("1.00 us", Tone::kGood)});
  table.Add({"a|b<i>*x*", "12.0 ms"});
  return table;
}

TEST(Table, Golden) {
  EXPECT_EQ(Sample().Text(),
            "name          time\n"
            "──────────────────\n"
            "group one\n"
            "alpha      1.00 us\n"
            "a|b<i>*x*  12.0 ms\n");
}

TEST(Table, Markdown) {
  EXPECT_EQ(Sample().Markdown(),
            "| name | time |\n"
            "|---|---:|\n"
            "| **group one** |  |\n"
            "| alpha | 1.00 us |\n"
            "| a\\|b&lt;i>\\*x\\* | 12.0 ms |\n");
}

TEST(Table, ColoursOnlyWhenAsked) {
  EXPECT_THAT(Sample().Text(), Not(HasSubstr("\x1b")));
  EXPECT_THAT(Sample().Text({.colour = true}), HasSubstr("\x1b[32m1.00 us\x1b[0m"));
}

TEST(Table, FitsTheWidthAndKeepsNamesApart) {
  Table table({{.title = "definition", .overflow = Overflow::kMiddle, .min_width = 8, .shrink = 1},
               {.title = "us", .align = Align::kRight}});
  table.Add({"noncausal_dense_attention_h32_d128", "1"});
  table.Add({"noncausal_dense_attention_h32_d64", "2"});
  table.Add({"noncausal_other_attention_h32_d64", "3"});
  for (int width = 12; width < 50; ++width) {
    const std::string text = table.Text({.width = width});
    for (const std::string& line : Lines(text)) EXPECT_LE(DisplayWidth(line), width) << text;
    if (width >= 20) continue;
    // Too narrow for the difference in the middle: everything is still there, wrapped.
    std::string joined;
    for (const char c : text) joined += c == '\n' || c == ' ' ? "" : std::string(1, c);
    EXPECT_THAT(text, Not(HasSubstr("…")));
    EXPECT_THAT(joined, HasSubstr("other"));
  }
}

TEST(Table, SurplusCellsAreABug) {
  Table table({{.title = "only"}});
  EXPECT_THROW(table.Add({"a", "b"}), Error);
}

TEST(Table, HostileCellsStayInTheirCell) {
  Table table({{.title = "a"}, {.title = "b"}});
  table.Add({"line\nbreak", "\x1b[2J\xff"});
  EXPECT_EQ(Lines(table.Text()).size(), 3u);
  EXPECT_THAT(table.Text(), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace assay
