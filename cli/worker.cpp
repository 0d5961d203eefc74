// `assay worker`: the process that the runner starts; hidden, not for people.
#include "replay/worker.h"

#include "cli/commands.h"

namespace assay::cli {

void AddWorkerCommand(CLI::App& app, int& exit_code) {
  auto fd = std::make_shared<int>(-1);
  CLI::App* command = app.add_subcommand("worker", "Serve the runner (internal)");
  command->group("");
  command->add_option("--fd", *fd, "Socket of the runner")->required();
  command->callback([fd, &exit_code] { exit_code = ServeWorker(BuiltInRegistry(), *fd); });
}

}  // namespace assay::cli
