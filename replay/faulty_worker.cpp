// A worker process whose only family is the faulty one. Its first argument may name a fault of the
// worker itself: "mute" (never greets), "old" (another protocol), "babble" (no JSON).
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "replay/faulty_family.h"
#include "replay/worker.h"

int main(int argc, char** argv) {
  const int fd = std::atoi(argv[argc - 1]);
  const std::string fault = argc > 3 ? argv[1] : "";
  const auto say = [fd](const char* text) {
    return write(fd, text, std::strlen(text)) > 0 ? 0 : 1;
  };
  if (fault == "mute") return 3;
  if (fault == "old") return say("{\"protocol\": 0}\n");
  if (fault == "babble") return say("hello\n");
  return assay::ServeWorker(assay::FaultyRegistry(), fd, nlohmann::json::array());
}
