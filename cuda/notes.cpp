#include "cuda/notes.h"

#include <utility>

namespace assay {
namespace {

thread_local std::vector<std::string> notes;

}  // namespace

void AddNote(std::string sentence) { notes.push_back(std::move(sentence)); }

std::vector<std::string> TakeNotes() { return std::exchange(notes, {}); }

}  // namespace assay
