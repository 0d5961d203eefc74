// Whole files in and out, with errors that name the file and the reason.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace assay {

// Throws kInput when the file is missing, a folder or unreadable.
std::string ReadFile(const std::string& path);

// Replaces the file in one step (a temporary beside it, then rename): no reader sees half of it.
// Devices and pipes are written in place. Throws kInput when it cannot, kDevice on a full disk.
void WriteFile(const std::string& path, std::string_view content);
// The same for a content in several parts.
void WriteFile(const std::string& path, std::span<const std::string_view> parts);

}  // namespace assay
