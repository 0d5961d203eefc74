#include "tests/fuzz/targets.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/axis_expression.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/trace_dataset.h"
#include "replay/channel.h"
#include "replay/ledger.h"
#include "replay/protocol.h"
#include "replay/suite.h"
#include "replay/trace_family.h"
#ifdef ASSAY_HAVE_TIMELINE
#include "timeline/read.h"
#endif

namespace assay {
namespace {

// What was read and written must read and write the same again.
void RequireSame(const std::string& first, const std::string& second) {
  if (first == second) return;
  std::fprintf(stderr, "not stable:\n%s\n%s\n", first.c_str(), second.c_str());
  std::abort();
}

void Suite(std::string_view input) {
  const std::string once = WorkloadToJson(WorkloadFromJson(input));
  RequireSame(once, WorkloadToJson(WorkloadFromJson(once)));
}

void LedgerLine(std::string_view input) {
  const nlohmann::json line = ParseJson(input);
  if (line.is_object() && line.contains("type") && line["type"] == "run") {
    const std::string once = RunInfoToJson(RunInfoFromJson(input));
    RequireSame(once, RunInfoToJson(RunInfoFromJson(once)));
  } else {
    const std::string once = CaseResultToJson(CaseResultFromJson(input), "r");
    RequireSame(once, CaseResultToJson(CaseResultFromJson(once), "r"));
  }
}

void Safetensors(std::string_view input) {
  const auto bytes = std::as_bytes(std::span(input.data(), input.size()));
  const SafetensorsFile file = SafetensorsFile::Parse(bytes, "input");
  for (const Tensor& tensor : file.tensors()) {
    Bundle copy = Bundle::Allocate({{tensor.name, tensor.dtype, tensor.shape}});
    file.ReadInto(tensor.name, copy.tensors()[0]);
    if (const auto damage = copy.CheckRedZones()) RequireSame("", *damage);
  }
}

// Lines as they come out of a socket, then as replies and as layouts of memory that is smaller.
void Protocol(std::string_view input) {
  constexpr std::size_t kSocketHolds = 1 << 16;
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) return;
  Channel channel{FileDescriptor(sockets[0])};
  {
    const FileDescriptor writer(sockets[1]);
    input = input.substr(0, kSocketHolds);
    if (write(writer.get(), input.data(), input.size()) < 0) return;
  }
  std::string line;
  while (channel.Receive(line) == Channel::Outcome::kMessage) {
    try {
      const std::string once = ReplyToJson(ReplyFromJson(line));
      RequireSame(once, ReplyToJson(ReplyFromJson(once)));
    } catch (const Error&) {
    }
    try {
      const auto layouts = LayoutsFromJson(ParseJson(line));
      const int fd = memfd_create("fuzz", MFD_CLOEXEC);
      if (ftruncate(fd, 1 << 14) == 0) Bundle::MapShared(layouts, fd).WriteRedZones();
    } catch (const Error&) {
    } catch (const nlohmann::json::exception&) {  // the worker answers with it
    }
  }
}

void Trace(std::string_view input) {
  const Axes axes = {{"n", 7}, {"m", -3}};
  HoldsForAxes(input, axes);
  try {
    TraceBlobPath("/proc", std::string(input));
  } catch (const Error&) {
  }
  try {
    ParseTraceLine(input);
  } catch (const Error&) {
  }
  try {
    ParseTraceSolution(input).Identity();
  } catch (const Error&) {
  }
  const Registry registry = WithTraceDefinitions(Registry({}), {ParseTraceDefinition(input)});
  const Family& family = registry.families().front();
  Axes variables;
  for (const std::string& name : family.definitions.front().variables) variables[name] = 3;
  const Problem problem = MakeProblem(family, family.name, variables);
  family.input_layouts(problem);
  family.sample_rows(problem, {}, 0);
}

#ifdef ASSAY_HAVE_TIMELINE
// Every reader gets everything; the last one's refusal stands when nobody accepts.
void TimelineJson(std::string_view input) {
  int accepted = 0;
  for (const auto read : {timeline::ReadKineto, timeline::ReadRocprofCsv}) {
    try {
      read("input", input, {});
      ++accepted;
    } catch (const Error&) {
    }
  }
  try {
    timeline::ReadRocprofJson("input", input);
  } catch (const Error&) {
    if (accepted == 0) throw;
  }
}

void TimelineSqlite(std::string_view input) {
  // A real file: SQLite follows links, and a memfd has no path at their end.
  static const std::string path =
      std::filesystem::temp_directory_path() / ("assay-fuzz-" + std::to_string(getpid()));
  {
    const FileDescriptor file(open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600));
    if (write(file.get(), input.data(), input.size()) < 0) return;
  }
  try {
    timeline::ReadNsys(path);
  } catch (const Error&) {
    unlink(path.c_str());
    throw;
  }
  unlink(path.c_str());
}
#endif

constexpr FuzzTarget kTargets[] = {
    {"suite", Suite},
    {"ledger", LedgerLine},
    {"safetensors", Safetensors},
    {"protocol", Protocol},
    {"trace", Trace},
#ifdef ASSAY_HAVE_TIMELINE
    {"timeline_json", TimelineJson},
    {"timeline_sqlite", TimelineSqlite},
#endif
};

}  // namespace

std::span<const FuzzTarget> FuzzTargets() { return kTargets; }

}  // namespace assay
