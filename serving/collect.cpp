#include "serving/collect.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <ostream>
#include <thread>

#if ASSAY_HAVE_HTTPLIB
#include <httplib.h>
#endif

#include "base/error.h"
#include "serving/json_lines.h"
#include "serving/text_source.h"

namespace assay::serving {
namespace {

using nlohmann::json;

std::int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Does this delta carry text? An empty role chunk does not end the time to first token.
bool HasContent(const json& event) {
  for (const json& choice : Member(event, "choices")) {
    const json& delta = Member(choice, "delta");
    for (const char* key : {"content", "reasoning_content", "reasoning"}) {
      if (!TextAt(delta, key).empty()) return true;
    }
    if (!Member(delta, "tool_calls").empty() || !TextAt(choice, "text").empty()) return true;
  }
  return false;
}

}  // namespace

std::vector<RequestLine> ReadRequestList(const std::string& path) {
  std::vector<RequestLine> requests;
  const std::string name = BaseName(path);
  LineBlocks blocks(path);
  for (const std::vector<Line>* lines = &blocks.Next(); !lines->empty(); lines = &blocks.Next()) {
    for (const Line& line : *lines) {
      const std::string at = fmt::format("{} line {}", name, line.number);
      const json j = ParseJson(line.text, at);
      json body = Member(j, "body");
      if (!body.is_object()) BadInput(at + " has no object called body");
      RequestLine request;
      request.conversation = TextAt(j, "conversation");
      request.request_id = TextAt(j, "request_id");
      if (request.conversation.empty()) request.conversation = fmt::format("#{}", requests.size());
      if (const std::string route = TextAt(j, "path"); !route.empty()) request.path = route;
      if (const double turn = NumberAt(j, "turn"); turn >= 0) {
        request.turn = static_cast<std::int32_t>(turn);
      }
      if (const double delay = NumberAt(j, "delay_s"); delay > 0) request.delay_s = delay;
      body["stream"] = true;
      body["stream_options"]["include_usage"] = true;
      request.body = body.dump();
      requests.push_back(std::move(request));
    }
  }
  if (requests.empty()) BadInput(name + " holds no request");
  return requests;
}

void SseParser::Feed(const char* data, std::size_t size, std::int64_t now_ns) {
  buffer_.append(data, size);
  std::size_t begin = 0;
  for (std::size_t end = buffer_.find('\n', begin); end != std::string::npos;
       end = buffer_.find('\n', begin)) {
    std::string line = buffer_.substr(begin, end - begin);
    begin = end + 1;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) {
      if (!data_.empty()) Event(data_, now_ns);
      data_.clear();
    } else if (line.starts_with("data:")) {
      line.erase(0, line.starts_with("data: ") ? 6 : 5);
      data_ += (data_.empty() ? "" : "\n") + line;
    }
  }
  buffer_.erase(0, begin);
}

void SseParser::Event(const std::string& data, std::int64_t now_ns) {
  if (data == "[DONE]") {
    state_.done = true;
    return;
  }
  json event;
  try {
    event = ParseJson(data, "event");
  } catch (const Error& error) {
    state_.error = "malformed event";
    return;
  }
  if (event.contains("error") && !event.at("error").is_null()) {
    state_.error = "server error";
    return;
  }
  const json& usage = Member(event, "usage");
  if (usage.is_object()) {
    state_.prompt_tokens = NumberAt(usage, "prompt_tokens");
    state_.completion_tokens = NumberAt(usage, "completion_tokens");
    const double cached = NumberAt(Member(usage, "prompt_tokens_details"), "cached_tokens");
    if (cached >= 0) state_.cached_tokens = cached;
  }
  if (!HasContent(event)) return;
  if (state_.chunks == 0) state_.first_ns = now_ns;
  state_.last_ns = now_ns;
  ++state_.chunks;
}

int RunClientCommand(const std::string& command, const std::string& facts_path) {
  const std::int64_t start = NowNs();
  const int status = std::system(command.c_str());  // NOLINT: running it is what was asked for
  const json facts = {
      {"facts", {{"started", std::to_string(start)}, {"ended", std::to_string(NowNs())}}},
      {"client_command", command}};
  std::ofstream out(facts_path);
  out << facts.dump(1) << "\n";
  if (!out) BadInput(BaseName(facts_path) + " cannot be written");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

#if ASSAY_HAVE_HTTPLIB

bool CanCollect() { return true; }

namespace {

class Collector {
 public:
  Collector(const std::vector<RequestLine>& requests, const CollectOptions& options,
            std::ostream& out)
      : requests_(requests), options_(options), out_(out) {
    std::map<std::string, std::size_t> index;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto [found, is_new] = index.emplace(requests[i].conversation, order_.size());
      if (is_new) order_.emplace_back();
      order_[found->second].push_back(i);
    }
  }

  CollectSummary Run() {
    const std::int64_t start = NowNs();
    std::vector<std::thread> lanes;
    for (int lane = 0; lane < options_.concurrency; ++lane) {
      lanes.emplace_back([this] { Lane(); });
    }
    for (std::thread& lane : lanes) lane.join();
    summary_.duration_s = 1e-9 * static_cast<double>(NowNs() - start);
    if (reached_ == 0) {
      throw Error(Fault::kDevice, "no request reached " + options_.url);
    }
    return summary_;
  }

 private:
  // Takes conversations one after the other; the turns of one are sequential.
  void Lane() {
    httplib::Client client(options_.url);
    client.set_connection_timeout(10);
    client.set_keep_alive(true);
    const auto whole = static_cast<time_t>(options_.timeout_s);
    client.set_read_timeout(
        whole, static_cast<time_t>((options_.timeout_s - static_cast<double>(whole)) * 1e6));
    for (std::size_t k = next_++; k < order_.size(); k = next_++) {
      for (const std::size_t i : order_[k]) {
        const std::int64_t ready = NowNs();
        if (requests_[i].delay_s > 0) {
          std::this_thread::sleep_for(std::chrono::duration<double>(requests_[i].delay_s));
        }
        Send(client, i, ready + static_cast<std::int64_t>(requests_[i].delay_s * 1e9));
      }
    }
  }

  void Send(httplib::Client& client, std::size_t i, std::int64_t due_ns) {
    const RequestLine& line = requests_[i];
    StreamState state;
    SseParser parser(state);
    httplib::Request request;
    request.method = "POST";
    request.path = line.path;
    request.body = line.body;
    request.headers = {{"Content-Type", "application/json"}, {"Accept", "text/event-stream"}};
    if (!options_.api_key.empty()) {
      request.headers.emplace("Authorization", "Bearer " + options_.api_key);
    }
    const std::int64_t start = NowNs();
    const auto deadline = start + static_cast<std::int64_t>(options_.timeout_s * 1e9);
    bool late = false;
    request.content_receiver = [&](const char* data, std::size_t size, std::uint64_t,
                                   std::uint64_t) {
      const std::int64_t now = NowNs();
      parser.Feed(data, size, now);
      late = now > deadline;
      return !late;
    };
    httplib::Response response;
    httplib::Error error = httplib::Error::Success;
    const bool sent = client.send(request, response, error);
    std::string problem = state.error;
    if (late || error == httplib::Error::Read) {
      problem = late || NowNs() >= deadline ? "timeout" : "connection closed";
    } else if (!sent) {
      problem = httplib::to_string(error);
    } else if (response.status != 200) {
      problem = fmt::format("http {}", response.status);
    } else if (problem.empty() && state.chunks == 0) {
      problem = "empty answer";
    } else if (problem.empty() && !state.done) {
      problem = "stream ended without [DONE]";
    }
    if (sent || state.chunks > 0) ++reached_;
    Write(line, i, start, due_ns, state, problem);
  }

  void Write(const RequestLine& line, std::size_t i, std::int64_t start, std::int64_t due_ns,
             const StreamState& state, const std::string& problem) {
    nlohmann::ordered_json record;
    record["conversation"] = line.conversation;
    record["turn"] = line.turn;
    if (!line.request_id.empty()) record["request_id"] = line.request_id;
    record["start_ns"] = start;
    if (problem.empty()) {
      record["ttft_s"] = 1e-9 * static_cast<double>(state.first_ns - start);
      record["e2e_s"] = 1e-9 * static_cast<double>(state.last_ns - start);
    }
    if (state.prompt_tokens >= 0) record["isl"] = state.prompt_tokens;
    // Without usage every content chunk counts as one token; a header fact says which it was.
    record["osl"] = state.completion_tokens >= 0 ? state.completion_tokens : state.chunks;
    if (state.cached_tokens >= 0) record["cached_tokens"] = state.cached_tokens;
    record["queue_s"] = 1e-9 * static_cast<double>(std::max<std::int64_t>(0, start - due_ns));
    record["chunks"] = state.chunks;
    record["phase"] =
        i < static_cast<std::size_t>(options_.warmup_requests) ? "warmup" : "profiling";
    if (!problem.empty()) record["error"] = problem;
    const std::lock_guard lock(mutex_);
    out_ << record.dump() << "\n";
    ++summary_.requests;
    if (!problem.empty()) ++summary_.errors;
  }

  const std::vector<RequestLine>& requests_;
  const CollectOptions& options_;
  std::ostream& out_;
  std::vector<std::vector<std::size_t>> order_;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::int64_t> reached_{0};
  std::mutex mutex_;
  CollectSummary summary_;
};

}  // namespace

CollectSummary Collect(const std::vector<RequestLine>& requests, const CollectOptions& options,
                       std::ostream& out) {
  if (!options.url.starts_with("http://")) {
    BadInput("\"" + options.url + "\" is no http://host:port address");
  }
  if (options.concurrency < 1)
    BadInput(fmt::format("concurrency {} is below 1", options.concurrency));
  nlohmann::ordered_json header;
  header["format"] = "assay-serving-records";
  header["version"] = 1;
  header["facts"] = {{"client", "assay ab collect"},
                     {"client_version", "1"},
                     {"token_source", "server"},
                     {"concurrency", std::to_string(options.concurrency)},
                     {"warmup_requests", std::to_string(options.warmup_requests)}};
  const json first = ParseJson(requests.front().body, "the first request");
  if (const std::string model = TextAt(first, "model"); !model.empty())
    header["facts"]["model"] = model;
  if (const std::string eos = TextAt(first, "ignore_eos"); !eos.empty()) {
    header["facts"]["ignore_eos"] = eos;
  }
  out << header.dump() << "\n";
  const CollectSummary summary = Collector(requests, options, out).Run();
  out.flush();
  if (!out) BadInput("the records could not be written");
  return summary;
}

#else

bool CanCollect() { return false; }

CollectSummary Collect(const std::vector<RequestLine>&, const CollectOptions&, std::ostream&) {
  throw Error(Fault::kUnsupported, "this build has no HTTP client (cpp-httplib)");
}

#endif

}  // namespace assay::serving
