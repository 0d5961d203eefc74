// What the record of a case tells of how a device backend computed it: the version of a library,
// the algorithm that was chosen.
#pragma once

#include <string>
#include <vector>

namespace assay {

// Adds a sentence. For Backend::prepare, on the thread that calls it.
void AddNote(std::string sentence);

// Hands over this thread's sentences. The worker takes them after each prepare.
std::vector<std::string> TakeNotes();

}  // namespace assay
