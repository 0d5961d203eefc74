// The worker of test_real_faults.cpp.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "replay/real_faults.h"
#include "replay/worker.h"

int main(int argc, char** argv) {
  return assay::ServeWorker(assay::RealFaultsRegistry(), std::atoi(argv[argc - 1]),
                            nlohmann::json::array());
}
