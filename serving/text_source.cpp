#include "serving/text_source.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#if ASSAY_HAVE_ZLIB
#include <zlib.h>
#endif

#include "base/error.h"
#include "io/sha256.h"

namespace assay::serving {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

void DropByteOrderMark(std::string& text) {
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
}

}  // namespace

std::string BaseName(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  return name.empty() ? path : name;
}

// gzread also reads plain files; without zlib gzip files are refused by their magic bytes.
struct LineBlocks::File {
#if ASSAY_HAVE_ZLIB
  explicit File(const std::string& path) : name(BaseName(path)) {
    handle = gzopen(path.c_str(), "rb");
    if (handle == nullptr) BadInput(name + " cannot be opened");
    gzbuffer(handle, 1u << 18);
  }
  ~File() { gzclose(handle); }
  std::size_t Read(char* to, std::size_t count) {
    const int got = gzread(handle, to, static_cast<unsigned>(count));
    int code = Z_OK;
    const char* text = gzerror(handle, &code);
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)) {
      BadInput(name + " is damaged: gzip reports \"" + text + "\"");
    }
    if (code == Z_BUF_ERROR) BadInput(name + " is truncated: the gzip stream ends early");
    return static_cast<std::size_t>(got);
  }
  gzFile handle = nullptr;
#else
  explicit File(const std::string& path) : name(BaseName(path)), stream(path, std::ios::binary) {
    if (!stream) BadInput(name + " cannot be opened");
  }
  std::size_t Read(char* to, std::size_t count) {
    stream.read(to, static_cast<std::streamsize>(count));
    const auto got = static_cast<std::size_t>(stream.gcount());
    if (first && got >= 2 && to[0] == '\x1f' && to[1] == '\x8b') {
      throw Error(Fault::kUnsupported, name + " is gzip, and this build has no zlib");
    }
    first = false;
    return got;
  }
  bool first = true;
#endif
  std::string name;
#if !ASSAY_HAVE_ZLIB
  std::ifstream stream;
#endif
};

LineBlocks::LineBlocks(const std::string& path, std::size_t block_bytes)
    : name_(BaseName(path)), block_bytes_(block_bytes) {
  if (std::filesystem::is_directory(path)) BadInput(name_ + " is a directory, not a file");
  file_ = std::make_unique<File>(path);
}

LineBlocks::~LineBlocks() = default;

const std::vector<Line>& LineBlocks::Next() {
  lines_.clear();
  while (lines_.empty() && !ended_) {
    buffer_ = std::move(rest_);
    rest_.clear();
    const std::size_t kept = buffer_.size();
    buffer_.resize(kept + block_bytes_);
    const std::size_t got = file_->Read(buffer_.data() + kept, block_bytes_);
    buffer_.resize(kept + got);
    ended_ = got == 0;
    if (!begun_ && got > 0) {
      DropByteOrderMark(buffer_);
      begun_ = true;
    }
    std::size_t begin = 0;
    while (begin < buffer_.size()) {
      std::size_t end = buffer_.find('\n', begin);
      const bool unterminated = end == std::string::npos;
      if (unterminated) {
        if (!ended_) {
          rest_ = buffer_.substr(begin);
          break;
        }
        end = buffer_.size();
      }
      ++number_;
      std::string_view text(buffer_.data() + begin, end - begin);
      if (text.ends_with('\r')) text.remove_suffix(1);
      const bool blank = text.find_first_not_of(" \t") == std::string_view::npos;
      if (!blank) lines_.push_back({text, number_, unterminated});
      begin = end + 1;
    }
  }
  return lines_;
}

namespace {

std::string ReadUpTo(const std::string& path, std::size_t limit, bool& more) {
  std::string text;
  more = false;
  LineBlocks blocks(path);
  for (const std::vector<Line>* lines = &blocks.Next(); !lines->empty(); lines = &blocks.Next()) {
    for (const Line& line : *lines) {
      text.append(line.text);
      if (!line.unterminated) text.push_back('\n');
      if (text.size() > limit) {
        more = true;
        return text;
      }
    }
  }
  return text;
}

}  // namespace

std::string ReadText(const std::string& path, std::size_t limit_bytes) {
  bool more = false;
  std::string text = ReadUpTo(path, limit_bytes, more);
  if (more) {
    BadInput(BaseName(path) + " holds more than " + std::to_string(limit_bytes >> 20) + " MiB");
  }
  if (text.empty()) BadInput(BaseName(path) + " is empty");
  return text;
}

std::string ReadHead(const std::string& path, std::size_t count) {
  bool more = false;
  std::string text = ReadUpTo(path, count, more);
  if (text.size() > count) text.resize(count);
  return text;
}

std::string FileSha256(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) BadInput(BaseName(path) + " cannot be opened");
  Sha256 hash;
  std::vector<char> block(std::size_t{1} << 20);
  while (stream.read(block.data(), static_cast<std::streamsize>(block.size())),
         stream.gcount() > 0) {
    hash.Update(std::string_view(block.data(), static_cast<std::size_t>(stream.gcount())));
  }
  return Hex(hash.Finish());
}

}  // namespace assay::serving
