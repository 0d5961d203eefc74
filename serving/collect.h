// Runs a recorded request list against an OpenAI-compatible streaming endpoint and writes our
// record form with exact client time stamps. Enough for a reviewer's rerun, not a load generator.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace assay::serving {

// One line of a request list: {"conversation", "turn", "path", "body", "delay_s", "request_id"}.
// `body` is sent as it is, with "stream": true and usage reporting added.
struct RequestLine {
  std::string conversation, request_id, path = "/v1/chat/completions", body;
  std::int32_t turn = 0;
  double delay_s = 0;  // after the end of the previous turn of its conversation
};
std::vector<RequestLine> ReadRequestList(const std::string& path);

struct CollectOptions {
  std::string url;          // http://host:port
  int concurrency = 1;      // conversations in flight; turns of one are sequential
  double timeout_s = 600;   // per request, for the whole answer
  int warmup_requests = 0;  // first requests marked as warm-up
  std::string api_key;      // sent as a bearer token when not empty
};

struct CollectSummary {
  std::int64_t requests = 0, errors = 0;
  double duration_s = 0;
};

// Is the HTTP client part of this build?
bool CanCollect();

// Writes one header line and one record per request, in the order in which they ended. Failed
// requests are records with an error, never dropped. Throws kInput for a malformed URL,
// kUnsupported without the client, kDevice when the server cannot be reached at all.
CollectSummary Collect(const std::vector<RequestLine>& requests, const CollectOptions& options,
                       std::ostream& out);

// Runs `command` (sh -c) and returns its exit status; the clock and the command are written as
// facts into `facts_path`. For clients that write their own result file.
int RunClientCommand(const std::string& command, const std::string& facts_path);

// The reply chunks of one server-sent-events stream.
struct StreamState {
  std::int64_t first_ns = 0, last_ns = 0;  // first and last chunk with content
  double prompt_tokens = -1, completion_tokens = -1, cached_tokens = -1;  // from usage
  std::int32_t chunks = 0;
  bool done = false;
  std::string error;
};

// Feeds bytes as they arrive; content chunks are stamped with `now_ns`.
class SseParser {
 public:
  explicit SseParser(StreamState& state) : state_(state) {}
  void Feed(const char* data, std::size_t size, std::int64_t now_ns);

 private:
  void Event(const std::string& data, std::int64_t now_ns);
  StreamState& state_;
  std::string buffer_, data_;
};

}  // namespace assay::serving
