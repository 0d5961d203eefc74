// Whole files in and out, with errors that name the file and the reason.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace assay {

// Throws kInput when the file is missing, a folder or unreadable.
std::string ReadFile(const std::string& path);

// Replaces the file in one step (temporary file beside it, then rename), so that a reader never
// sees half of it. Throws kInput when the folder cannot be written, kDevice when the disk is full.
void WriteFile(const std::string& path, std::string_view content);
// The same for a content in several parts.
void WriteFile(const std::string& path, std::span<const std::string_view> parts);

}  // namespace assay
