// What several verbs share: where the ledger is, colours, the command line as text.
#pragma once

#include <string>
#include <vector>

#include "ops/registry.h"
#include "replay/ledger.h"

namespace assay::cli {

// The families with every backend that this program has: our own and libraries of other parties.
const Registry& ShippedRegistry();

// "assay.sqlite" in the current folder, or "assay.jsonl" in builds without SQLite.
std::string DefaultLedger();

// The run with this id, "last", or a unique prefix; throws kInput naming what exists.
RunInfo FindRun(const Ledger& ledger, const std::string& id);

// Colours are used on terminals only, and never when NO_COLOR is set.
bool UseColor(int fd);
// Columns of the terminal on `fd`; 100 when it is none.
int TerminalWidth(int fd);

// This program with the verb `worker`, as RunOptions wants it.
std::vector<std::string> OwnWorkerCommand();

// The whole command line, set once by main, for provenance.
void SetCommandLine(int argc, char** argv);
const std::string& CommandLine();

}  // namespace assay::cli
