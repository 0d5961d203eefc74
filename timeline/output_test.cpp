// Perfetto bytes decoded again, and the page shown by a real browser.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "timeline/read.h"
#include "timeline/result.h"
#include "timeline/short_name.h"
#include "timeline/synthetic.h"

namespace assay::timeline {
namespace {

namespace fs = std::filesystem;

std::string Temporary(const char* suffix) {
  return (fs::temp_directory_path() / ("assay_output_" + std::to_string(getpid()))).string() +
         suffix;
}

Trace Synthetic(const SyntheticTrace& spec) {
  const std::string path = Temporary(".sqlite");
  WriteSyntheticExport(path, spec);
  Trace trace = ReadTrace(path);
  fs::remove(path);
  return trace;
}

// One message's fields; only wire types that the writer uses.
struct Message {
  std::multimap<int, std::uint64_t> numbers;
  std::multimap<int, std::string> bytes;
};

Message Decode(std::string_view text) {
  Message message;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(text.at(at++));
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  while (at < text.size()) {
    const std::uint64_t tag = varint();
    const int field = static_cast<int>(tag >> 3);
    if ((tag & 7) == 0) {
      message.numbers.emplace(field, varint());
    } else if ((tag & 7) == 1) {
      std::uint64_t value = 0;
      for (int k = 0; k < 8; ++k) {
        value |= static_cast<std::uint64_t>(static_cast<unsigned char>(text.at(at++))) << (8 * k);
      }
      message.numbers.emplace(field, value);
    } else {
      EXPECT_EQ(tag & 7, 2u);
      const std::size_t size = varint();
      message.bytes.emplace(field, std::string(text.substr(at, size)));
      EXPECT_LE(at + size, text.size());
      at += size;
    }
  }
  return message;
}

TEST(Perfetto, EveryRowIsASliceThatNestsAndFlowsAreClosed) {
  SyntheticTrace spec;
  spec.kernels = 300;
  Trace trace = Synthetic(spec);
  trace.gpu[10].end = trace.gpu[30].start;  // overlapping rows of one stream go to extra lanes
  const LaunchIndex index(trace);
  const TimelineResult result = AnalyzeRun(trace, index, {FullScope(trace)}, {});
  std::map<std::uint64_t, int> depth;
  std::map<std::uint64_t, std::uint64_t> last;
  std::map<std::uint64_t, std::string> tracks;
  std::multimap<std::uint64_t, bool> flows;
  std::size_t begins = 0, ends = 0, instants = 0;
  std::string names;
  for (const auto& [field, bytes] : Decode(ResultToPerfetto(result)).bytes) {
    EXPECT_EQ(field, 1);
    const Message packet = Decode(bytes);
    if (const auto track = packet.bytes.find(60); track != packet.bytes.end()) {
      const Message descriptor = Decode(track->second);
      const auto name = descriptor.bytes.find(2);
      tracks[descriptor.numbers.find(1)->second] =
          name == descriptor.bytes.end() ? "process" : name->second;
    }
    if (const auto interned = packet.bytes.find(12); interned != packet.bytes.end()) {
      names += interned->second;
    }
    const auto found = packet.bytes.find(11);
    if (found == packet.bytes.end()) continue;
    const Message event = Decode(found->second);
    const std::uint64_t track = event.numbers.find(11)->second;
    const std::uint64_t time = packet.numbers.find(8)->second;
    const std::uint64_t type = event.numbers.find(9)->second;
    ASSERT_TRUE(tracks.count(track));
    EXPECT_GE(time, last[track]);
    last[track] = time;
    begins += type == 1;
    ends += type == 2;
    instants += type == 3;
    depth[track] += type == 1 ? 1 : type == 2 ? -1 : 0;
    EXPECT_GE(depth[track], 0);
    EXPECT_LE(depth[track], 1);
    if (type == 1 || type == 3) {
      EXPECT_EQ(event.numbers.count(10), 1u);
    }
    for (const int flow_field : {47, 48}) {
      const auto flow = event.numbers.find(flow_field);
      if (flow != event.numbers.end()) flows.emplace(flow->second, flow_field == 48);
    }
  }
  EXPECT_EQ(begins, ends);
  EXPECT_EQ(begins + instants, trace.gpu.size() + trace.api.size());
  EXPECT_NE(names.find("ncclDevKernel"), std::string::npos);
  bool extra_lane = false;
  for (const auto& [id, name] : tracks) extra_lane |= name.find("(overlap 1)") != name.npos;
  EXPECT_TRUE(extra_lane);
  for (const auto& [flow, terminates] : flows) EXPECT_GE(flows.count(flow), 2u) << flow;
}

std::string Chromium() {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
    const std::string path = std::string("/usr/bin/") + name;
    if (fs::exists(path)) return path;
  }
  return "";
}

// The document after the page's program has run.
std::string Show(const std::string& page, const std::string& hash) {
  const std::string profile = Temporary(".profile");
  const std::string command =
      "timeout 120 " + Chromium() +
      " --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir=" +
      profile + " --virtual-time-budget=15000 --dump-dom 'file://" + page + hash + "' 2>/dev/null";
  std::string dom;
  if (std::FILE* pipe = popen(command.c_str(), "r")) {
    char block[65536];
    for (std::size_t got; (got = std::fread(block, 1, sizeof block, pipe)) > 0;) {
      dom.append(block, got);
    }
    pclose(pipe);
  }
  fs::remove_all(profile);
  return dom;
}

std::string Attribute(const std::string& dom, const std::string& name) {
  const std::string mark = "data-" + name + "=\"";
  const std::size_t at = dom.find(mark);
  if (at == dom.npos) return "";
  return dom.substr(at + mark.size(), dom.find('"', at + mark.size()) - at - mark.size());
}

TEST(Html, ABrowserShowsEveryRowAndTable) {
  if (Chromium().empty()) GTEST_SKIP() << "no Chromium on this machine";
  SyntheticTrace spec;
  spec.kernels = 20'000;
  spec.nvtx_per_kernel = 0.05;
  spec.lost_tail = 0.2;
  const Trace trace = Synthetic(spec);
  const LaunchIndex index(trace);
  AnalyzeOptions options;
  options.short_name = ShortName;
  const std::string html = ResultToHtml(AnalyzeRun(trace, index, {FullScope(trace)}, options));
  EXPECT_EQ(html.find("http:"), html.npos);
  EXPECT_EQ(html.find("https:"), html.npos);
  const std::string page = Temporary(".html");
  std::ofstream(page, std::ios::binary) << html;
  const std::string dom = Show(page, "#tour");
  fs::remove(page);
  EXPECT_EQ(Attribute(dom, "error"), "");
  EXPECT_EQ(Attribute(dom, "rows"), std::to_string(trace.gpu.size()));
  EXPECT_EQ(Attribute(dom, "frames"), "40");
  // Tables are filled: kernels with escaped names, the audit with its verdict.
  EXPECT_NE(dom.find("ncclDevKernel_AllReduce_Sum_bf16_RING_LL"), dom.npos);
  EXPECT_NE(dom.find("kernel_7&lt;128, Tile&lt;7, false&gt;&gt;"), dom.npos);
  EXPECT_NE(dom.find("truncated"), dom.npos);
  EXPECT_NE(dom.find("layer 3"), dom.npos);
}

}  // namespace
}  // namespace assay::timeline
