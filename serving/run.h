// One serving run as the analysis sees it, whichever client wrote it: requests with SI units, the
// distributions of an aggregate, the facts that gates compare, and remarks about definitions.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace assay::serving {

inline constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();
inline constexpr std::int64_t kNoTime = std::numeric_limits<std::int64_t>::min();

enum class Phase : std::uint8_t { kProfiling, kWarmup };
enum class Outcome : std::uint8_t { kOk, kError, kTimeout, kCancelled, kOverflow };

// One client request. Times in seconds, NaN where the client did not record them.
struct Request {
  std::int32_t conversation = -1;   // key: index into Run::names (conversation, request id, hash)
  std::int32_t turn = 0;            // key: turn within the conversation
  std::int32_t ordinal = 0;         // key: which play of that conversation (0 = first)
  std::int32_t cluster = -1;        // index into Run::names: what is resampled as one; -1 = none
  std::int64_t start_ns = kNoTime;  // request sent, any epoch
  std::int64_t end_ns = kNoTime;    // last content chunk
  double ttft_s = kMissing;         // first content chunk - start
  double e2e_s = kMissing;          // last content chunk - start
  double itl_s = kMissing;          // (e2e - ttft) / (osl - 1), osl >= 2
  double isl = kMissing;            // prompt tokens
  double osl = kMissing;            // output tokens
  double cached = kMissing;         // prompt tokens answered by the server's cache
  double accept_length = kMissing;  // tokens per decode step, with the bonus token
  double queue_s = kMissing;        // waited in the client before the request was sent
  std::int32_t chunks = -1;         // content chunks received
  Phase phase = Phase::kProfiling;
  Outcome outcome = Outcome::kOk;

  bool Measured() const { return phase == Phase::kProfiling && outcome == Outcome::kOk; }
};

// Summary of one metric in an aggregate file; seconds, tokens or 1/s. NaN = not given.
struct Distribution {
  double count = kMissing, mean = kMissing, std = kMissing, min = kMissing, max = kMissing;
  std::map<double, double> quantiles;  // 0.5 -> value; of the slow side for rates

  double At(double q) const;  // NaN when that quantile is not given
};

// What a request can be matched by, best first.
enum class KeyKind { kNone, kIndex, kPromptHash, kRequestId, kConversationTurn };
std::string_view NameOf(KeyKind kind);

struct InputFile {
  std::string label;   // file name without its folder
  std::string sha256;  // of the bytes on disk
  std::string schema;  // "aiperf records", "vllm bench (detailed)", ...
};

struct Run {
  std::string label;
  std::vector<InputFile> inputs;
  KeyKind key = KeyKind::kNone;
  std::vector<std::string> names;
  std::vector<Request> requests;
  std::map<std::string, Distribution> aggregate;  // by canonical metric name, see metrics.h
  std::map<std::string, std::string> facts;       // configuration by canonical name, see facts.h
  std::map<std::string, double> numbers;          // measured totals by canonical name, see facts.h
  std::vector<std::string> notes;                 // definitions that differ, lines skipped, ...
  bool percentiles_step = false;  // aggregate percentiles are type 1 (guidellm), not type 7
  bool rates_fast_tail = false;   // rate percentiles were read from the fast side

  // 3 = records with a stable key, 2 = records, 1 = aggregates only.
  int EvidenceLevel() const;
  double Number(const std::string& name) const;  // NaN when unknown
  std::string Fact(const std::string& name) const;
  // Keeps the first value: the caller adds the most trustworthy source first.
  void AddFact(const std::string& name, const std::string& value);
  void AddNumber(const std::string& name, double value);
};

// Maps strings to indices of Run::names while a reader runs.
class NamePool {
 public:
  explicit NamePool(Run& run) : run_(run) {}
  std::int32_t Index(std::string_view name);

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  Run& run_;
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> index_;
};

// Fills what can be derived: itl from ttft, e2e and osl; end from start; totals and duration in
// `numbers` where the file gave none. Every reader ends with it.
void FinishRun(Run& run);

}  // namespace assay::serving
