// Bytes of an input file, plain or gzip, whole or in blocks of complete lines, with the SHA-256 of
// what lies on disk. Files are named in messages without their folder.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace assay::serving {

std::string BaseName(const std::string& path);

// The whole (decompressed) text without a byte-order mark. Throws when it cannot be read, is empty
// or is larger than `limit_bytes`.
std::string ReadText(const std::string& path, std::size_t limit_bytes = std::size_t{1} << 30);

// The first `count` bytes of the decompressed text, without a byte-order mark.
std::string ReadHead(const std::string& path, std::size_t count);

// Lowercase hexadecimal SHA-256 of the file as stored.
std::string FileSha256(const std::string& path);

struct Line {
  std::string_view text;  // without line end; never empty
  std::size_t number = 0;
  bool unterminated = false;  // the file ends here without a line end: may be cut off
};

// Streams a text file as blocks of complete lines, so that memory does not grow with the file.
class LineBlocks {
 public:
  explicit LineBlocks(const std::string& path, std::size_t block_bytes = std::size_t{4} << 20);
  ~LineBlocks();
  LineBlocks(const LineBlocks&) = delete;
  LineBlocks& operator=(const LineBlocks&) = delete;

  // The next lines (blank ones left out), valid until the next call; empty at the end.
  const std::vector<Line>& Next();

 private:
  struct File;
  std::string name_;
  std::unique_ptr<File> file_;
  std::size_t block_bytes_;
  std::string buffer_, rest_;
  std::vector<Line> lines_;
  std::size_t number_ = 0;
  bool begun_ = false, ended_ = false;
};

}  // namespace assay::serving
