// Python peers as a user meets them: `assay run --peers` with a right peer and peers that break a
// rule each. The peers need nothing but Python; those of torch are listed with what is missing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "io/file.h"
#include "tests/cli_process.h"

namespace assay {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* kPeers = ASSAY_SOURCE_DIR "/python/tests/peers";

std::string Workload(const std::string& uuid, int batch) {
  return "{\"definition\": \"gdn_decode_qk4_v8_d128_k_last\", \"workload\": {\"uuid\": \"" + uuid +
         "\", \"axes\": {\"batch_size\": " + std::to_string(batch) + "}}}\n";
}

class PythonPeers : public ::testing::Test {
 protected:
  CliResult Run(const std::vector<std::string>& words) { return RunCli(words, folder_.path()); }
  // Cases by backend of a run of one small workload on these peers.
  std::map<std::string, Json> Cases(const std::string& backends, std::vector<std::string> more) {
    const std::string suite = folder_.Write("suite.jsonl", Workload("u-1", 1));
    std::vector<std::string> words = {"run",    "--suite", suite,  "--json",   "--backend",
                                      backends, "--peers", kPeers, "--budget", "0.4"};
    words.insert(words.end(), more.begin(), more.end());
    const CliResult run = Run(words);
    EXPECT_EQ(run.err, "");
    std::map<std::string, Json> cases;
    const Json report = Json::parse(run.out);
    for (const Json& one : report.at("cases")) cases[one.at("backend").at("name")] = one;
    return cases;
  }
  TemporaryFolder folder_;
};

std::string Text(const Json& one, const char* field) { return one.value(field, ""); }

TEST_F(PythonPeers, ARightPeerPassesBesideOurOwnBackend) {
  const auto cases = Cases("cpu,py.plain,py.prints", {"--repeats", "2"});
  ASSERT_EQ(cases.size(), 3u);
  for (const auto& [backend, one] : cases) {
    EXPECT_EQ(one.at("status"), "passed") << one.dump();
    EXPECT_EQ(one.at("timing").size(), 2u) << one.dump();
  }
}

TEST_F(PythonPeers, EveryFaultIsAResultWithItsName) {
  const struct {
    const char *peer, *status, *sub, *reason;
  } expectations[] = {
      {"py.wrong", "incorrect", "numerical", "new_state"},
      {"py.throws", "failed", "exception", "KeyError: 'no luck' (gdn_plain.py:"},
      {"py.exits", "failed", "exit", "exit code 3"},
      {"py.crashes", "failed", "signal", "signal 11"},
      {"py.writes_behind", "incorrect", "out_of_bounds", "'new_state': byte 8 behind its end"},
      {"py.modifies_input", "incorrect", "input_modified", "'v' was modified"},
      {"py.skips_repeats", "incorrect", "unstable", "before every output element"},
      {"py.refuses", "unsupported", "", "only on Sundays"},
      {"py.absent", "unsupported", "", "'no_such_package' is not installed"},
      {"py.leaks", "oom", "", "ran out of memory"},
      {"py.forks", "failed", "child", "child process"},
  };
  std::string names = "py.plain";
  for (const auto& expected : expectations) names += std::string(",") + expected.peer;
  const auto cases = Cases(names, {"--repeats", "1"});
  for (const auto& expected : expectations) {
    ASSERT_TRUE(cases.contains(expected.peer)) << expected.peer;
    const Json& one = cases.at(expected.peer);
    EXPECT_EQ(Text(one, "status"), expected.status) << one.dump();
    EXPECT_EQ(Text(one, "sub"), expected.sub) << one.dump();
    EXPECT_THAT(Text(one, "reason"), HasSubstr(expected.reason)) << expected.peer;
  }
  EXPECT_EQ(cases.at("py.plain").at("status"), "passed");
}

TEST_F(PythonPeers, AWorkerThatCannotGoOnIsReplaced) {
  const std::string suite = folder_.Write("suite.jsonl", Workload("u-1", 1) + Workload("u-2", 1));
  const CliResult run = Run({"run", "--suite", suite, "--peers", kPeers, "--backend", "py.gives_up",
                             "--json", "--no-timing"});
  const Json report = Json::parse(run.out);
  ASSERT_EQ(report.at("cases").size(), 2u);
  for (const Json& one : report.at("cases")) {
    EXPECT_EQ(Text(one, "reason"), "torch is in a state");  // from a process of its own each time
  }
}

TEST_F(PythonPeers, AHangIsKilledAndCostsOneCase) {
  const auto cases = Cases("py.hangs,py.plain", {"--timeout", "2", "--no-timing"});
  EXPECT_EQ(cases.at("py.hangs").at("status"), "timeout");
  EXPECT_EQ(cases.at("py.plain").at("status"), "passed");
}

TEST_F(PythonPeers, AreListedWithWhatIsMissing) {
  const CliResult backends = Run({"list", "backends", "--peers", kPeers, "--json"});
  ASSERT_EQ(backends.exit_code, 0) << backends.err;
  std::map<std::string, Json> rows;
  for (const Json& row : Json::parse(backends.out)) rows[row.at("backend")] = row;
  EXPECT_TRUE(rows.contains("torch.mm"));
  EXPECT_FALSE(rows.at("py.plain").contains("unavailable"));
  EXPECT_EQ(Text(rows.at("py.absent"), "unavailable"),
            "the Python package 'no_such_package' is not installed");
  EXPECT_THAT(Run({"list", "--peers", kPeers}).out, HasSubstr("py.absent: the Python package"));
  EXPECT_THAT(Run({"list"}).out, ::testing::Not(HasSubstr("torch")));  // off by default
}

TEST_F(PythonPeers, BadPlacesGetOneSentence) {
  const auto refused = [&](const std::vector<std::string>& words, const char* sentence) {
    std::vector<std::string> all = {"list"};
    all.insert(all.end(), words.begin(), words.end());
    const CliResult result = Run(all);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_THAT(result.err, HasSubstr(sentence));
  };
  refused({"--peers", "/nowhere.py"}, "assay: peer file /nowhere.py: no such file or folder");
  refused({"--python=no-such-python"}, "no-such-python");
  const std::string broken = folder_.Write("broken.py", "PEERS = [\n");
  refused({"--peers", broken}, "broken.py: SyntaxError");
  const std::string taken = folder_.Write(
      "taken.py",
      "from assay.peer import Peer\nPEERS = [Peer('cpu', ('gdn_decode',), lambda *a: None)]\n");
  refused({"--peers", taken}, "Python peer 'cpu' has the name of another backend");
  const std::string lost = folder_.Write(
      "lost.py",
      "from assay.peer import Peer\nPEERS = [Peer('x', ('nothing',), lambda *a: None)]\n");
  refused({"--peers", lost}, "'nothing'");
}

TEST_F(PythonPeers, CallsCapturedInAnEngineAreReplayed) {
  const std::string suite = folder_.Write("suite.jsonl", Workload("u-1", 1));
  EXPECT_EQ(Run({"dataset", "export", "ds", "--suite", suite}).exit_code, 0);
  const std::string engine = "cd " ASSAY_SOURCE_DIR "/python && " PYTHON_PROGRAM
                             " -m tests.captured_engine " +
                             folder_.path() + "/captured " + folder_.path() + "/ds/definitions > " +
                             folder_.path() + "/summary";
  ASSERT_EQ(std::system(engine.c_str()), 0);
  EXPECT_EQ(ReadFile(folder_.path() + "/summary"),
            "tests.captured_engine:decode: 2 of 4 calls kept, 2 shapes\n");
  const CliResult check = Run({"dataset", "check", "captured"});
  EXPECT_EQ(check.exit_code, 0) << check.err;
  EXPECT_THAT(check.out, HasSubstr("2 workloads, 0 solutions, 0 traces; 0 problems"));
  const CliResult run = Run({"run", "--dataset", "captured", "--backend", "cpu", "--no-timing",
                             "--json", "--ledger", "run.jsonl"});
  const Json cases = Json::parse(run.out).at("cases");
  ASSERT_EQ(cases.size(), 2u) << run.err;
  for (const Json& one : cases) {
    EXPECT_EQ(one.at("status"), "passed") << one.dump();
    EXPECT_EQ(one.at("input_source"), "blob");
    EXPECT_EQ(one.at("model"), "stand-in");
    // That engine answers zeros: an error beside a verdict which it does not touch.
    EXPECT_EQ(one.at("engine_correctness").size(), 2u);
    EXPECT_GT(one.at("engine_correctness").at(0).at("max_abs"), 0);
  }
}

}  // namespace
}  // namespace assay
