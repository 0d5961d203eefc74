// The collector against a mock server that the test starts: time stamps, usage, failures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "serving/collect.h"
#include "serving/readers.h"

namespace assay::serving {
namespace {

std::string Chunk(const std::string& text) {
  return R"(data: {"choices":[{"delta":{"content":")" + text + "\"}}]}\n\n";
}

// Streams an empty role chunk at once, then tokens every 20 ms after 60 ms.
class MockServer {
 public:
  MockServer() {
    server_.Post("/v1/chat/completions", [](const httplib::Request& request,
                                            httplib::Response& response) {
      if (request.body.find("\"fail\"") != std::string::npos) {
        response.status = 500;
        return;
      }
      const bool cut = request.body.find("\"cut\"") != std::string::npos;
      response.set_chunked_content_provider("text/event-stream", [cut](std::size_t,
                                                                       httplib::DataSink& sink) {
        const auto send = [&](const std::string& text) { sink.write(text.data(), text.size()); };
        const auto wait = [](int ms) {
          std::this_thread::sleep_for(std::chrono::milliseconds(ms));
        };
        send("data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n");
        wait(60);
        for (int token = 0; token < 5; ++token) {
          if (token > 0) wait(20);
          send(Chunk("t"));
        }
        if (!cut) {
          wait(30);  // usage after the last content chunk does not count
          send(
              "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":5,"
              "\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n");
          send("data: [DONE]\n\n");
        }
        sink.done();
        return true;
      });
    });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~MockServer() {
    server_.stop();
    thread_.join();
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  httplib::Server server_;
  std::thread thread_;
  int port_ = 0;
};

class CollectTest : public testing::Test {
 protected:
  std::string File(const std::string& name) {
    std::filesystem::create_directories(folder_);
    return (folder_ / name).string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("assay_collect_" + std::to_string(getpid()));
};

TEST_F(CollectTest, RecordsExactTimes) {
  const MockServer server;
  std::ofstream(File("requests.jsonl"))
      << R"({"conversation":"a","turn":0,"body":{"model":"m","messages":[]}})"
         "\n"
      << R"({"conversation":"a","turn":1,"delay_s":0.05,"body":{"model":"m","messages":[]}})"
         "\n"
      << R"({"conversation":"b","turn":0,"body":{"model":"m","messages":["fail"]}})"
         "\n"
      << R"({"conversation":"c","turn":0,"body":{"model":"m","messages":["cut"]}})"
         "\n";
  CollectOptions options;
  options.url = server.url();
  options.concurrency = 2;
  {
    std::ofstream out(File("records.jsonl"));
    const CollectSummary summary = Collect(ReadRequestList(File("requests.jsonl")), options, out);
    EXPECT_EQ(summary.requests, 4);
    EXPECT_EQ(summary.errors, 2);
  }
  const auto run = LoadRun(File("records.jsonl"));
  ASSERT_EQ(run.requests.size(), 4u);
  EXPECT_EQ(run.Fact("model"), "m");
  EXPECT_EQ(run.Fact("client"), "assay ab collect");
  EXPECT_EQ(run.EvidenceLevel(), 3);
  int ok = 0;
  std::int64_t first_end = 0;
  for (const Request& r : run.requests) {
    if (!r.Measured()) continue;
    ++ok;
    EXPECT_GE(r.ttft_s, 0.055);  // the empty role chunk does not count
    EXPECT_GE(r.e2e_s, r.ttft_s + 0.075);
    EXPECT_LT(r.e2e_s,
              r.ttft_s + 0.075 + 0.25);  // and neither does the usage chunk; loaded machine
    EXPECT_EQ(r.osl, 5);
    EXPECT_EQ(r.isl, 11);
    EXPECT_EQ(r.cached, 8);
    if (r.turn == 0) first_end = r.end_ns;
    if (r.turn == 1) {
      EXPECT_GE(r.start_ns, first_end + 50'000'000);
    }
  }
  EXPECT_EQ(ok, 2);
}

TEST_F(CollectTest, UnreachableServerAndBadInput) {
  std::ofstream(File("requests.jsonl")) << R"({"body":{"model":"m"}})"
                                           "\n";
  const auto requests = ReadRequestList(File("requests.jsonl"));
  std::ofstream out(File("records.jsonl"));
  CollectOptions options;
  options.url = "http://127.0.0.1:1";
  try {
    Collect(requests, options, out);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::kDevice);
  }
  options.url = "ftp://x";
  EXPECT_THROW(Collect(requests, options, out), Error);
  std::ofstream(File("bad.jsonl")) << "{\"conversation\":\"a\"}\n";
  EXPECT_THROW(ReadRequestList(File("bad.jsonl")), Error);
}

// Neither the empty role chunk before nor the usage chunk after the text moves a stamp.
TEST(Sse, OnlyContentIsStamped) {
  StreamState state;
  SseParser parser(state);
  const std::string events[] = {
      "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n", Chunk("x"),
      Chunk("y"),
      "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n",
      "data: [DONE]\n\n"};
  std::int64_t now = 100;
  for (const std::string& event : events) parser.Feed(event.data(), event.size(), now++);
  EXPECT_EQ(state.first_ns, 101);
  EXPECT_EQ(state.last_ns, 102);
  EXPECT_EQ(state.chunks, 2);
  EXPECT_EQ(state.prompt_tokens, 7);
  EXPECT_EQ(state.completion_tokens, 2);
  EXPECT_TRUE(state.done);
}

TEST(Sse, EventsCutAnywhere) {
  const std::string stream =
      ": comment\r\n" + Chunk("x") + "data: {\"choices\":[]}\n\n" + Chunk("y") + "data: [DONE]\n\n";
  for (std::size_t cut = 1; cut < stream.size(); ++cut) {
    StreamState state;
    SseParser parser(state);
    parser.Feed(stream.data(), cut, 1);
    parser.Feed(stream.data() + cut, stream.size() - cut, 2);
    EXPECT_EQ(state.chunks, 2);
    EXPECT_TRUE(state.done);
    EXPECT_EQ(state.last_ns, 2 - (cut == stream.size() ? 1 : 0) - (state.last_ns == 1 ? 1 : 0));
  }
  StreamState state;
  SseParser parser(state);
  const std::string bad = "data: {oops\n\n";
  parser.Feed(bad.data(), bad.size(), 1);
  EXPECT_EQ(state.error, "malformed event");
}

TEST_F(CollectTest, RunsAnotherClient) {
  EXPECT_EQ(RunClientCommand("exit 3", File("client.facts.json")), 3);
  std::ifstream facts(File("client.facts.json"));
  const std::string text((std::istreambuf_iterator<char>(facts)), {});
  EXPECT_THAT(text, testing::HasSubstr("\"client_command\": \"exit 3\""));
}

}  // namespace
}  // namespace assay::serving
