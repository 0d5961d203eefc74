// Table b-tree walk and record decoding. Every length is checked against the page before use.
#include "timeline/sqlite_pages.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cstring>

#include "base/error.h"

namespace assay::timeline {
namespace {

constexpr std::uint32_t kWindowBytes = 256 * 1024;

std::uint32_t Big16(const unsigned char* p) { return (p[0] << 8) | p[1]; }
std::uint32_t Big32(const unsigned char* p) {
  return (static_cast<std::uint32_t>(p[0]) << 24) | (p[1] << 16) | (p[2] << 8) | p[3];
}

// Reads a varint; returns its length or 0 when it would pass `end`.
inline int Varint(const unsigned char* p, const unsigned char* end, std::uint64_t& value) {
  if (p < end && *p < 0x80) {
    value = *p;
    return 1;
  }
  std::uint64_t v = 0;
  for (int k = 0; k < 9 && p + k < end; ++k) {
    if (k == 8) {
      value = (v << 8) | p[k];
      return 9;
    }
    v = (v << 7) | (p[k] & 0x7F);
    if (p[k] < 0x80) {
      value = v;
      return k + 1;
    }
  }
  return 0;
}

inline std::int64_t BigSigned(const unsigned char* p, int bytes) {
  std::uint64_t v = (p[0] & 0x80) ? ~std::uint64_t{0} : 0;
  for (int k = 0; k < bytes; ++k) v = (v << 8) | p[k];
  return static_cast<std::int64_t>(v);
}

constexpr int kFixedSize[12] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0, -1, -1};

inline std::uint64_t SerialSize(std::uint64_t serial) {
  return serial < 12 ? static_cast<std::uint64_t>(kFixedSize[serial]) : (serial - 12) / 2;
}

inline void Decode(std::uint64_t serial, const unsigned char* p, Cell& cell) {
  if (serial >= 1 && serial <= 6) {  // almost every cell of a trace
    cell.type = Cell::kInteger;
    std::uint64_t v = (p[0] & 0x80) ? ~std::uint64_t{0} : 0;
    switch (serial) {
      case 6:
        v = std::uint64_t{Big32(p)} << 32 | Big32(p + 4);
        break;
      case 5:
        v = v << 48 | std::uint64_t{Big16(p)} << 32 | Big32(p + 2);
        break;
      case 4:
        v = v << 32 | Big32(p);
        break;
      case 3:
        v = v << 24 | Big16(p) << 8 | p[2];
        break;
      case 2:
        v = v << 16 | Big16(p);
        break;
      default:
        v = v << 8 | p[0];
        break;
    }
    cell.integer = static_cast<std::int64_t>(v);
  } else if (serial >= 12) {
    cell.type = serial & 1 ? Cell::kText : Cell::kBlob;
    cell.text = {reinterpret_cast<const char*>(p), static_cast<std::size_t>((serial - 12) / 2)};
  } else if (serial == 0) {
    cell.type = Cell::kNull;
  } else if (serial == 7) {
    cell.type = Cell::kReal;
    cell.real = std::bit_cast<double>(BigSigned(p, 8));
  } else {
    cell.type = Cell::kInteger;
    cell.integer =
        serial >= 8 ? static_cast<std::int64_t>(serial) - 8 : BigSigned(p, kFixedSize[serial]);
  }
}

}  // namespace

struct PageFile::Walk {
  const std::string& table;
  const ColumnPlan& plan;
  const std::function<void(const Cell*)>& row;
  std::vector<Cell> cells;
  std::vector<unsigned char> spilled;  // payload of a row with overflow pages
  std::vector<unsigned char> leaf;     // copy of a leaf whose overflow pages move the window
  std::uint32_t visited = 0;           // pages, to stop on a cycle
};

PageFile::PageFile(const std::string& path) : path_(path) {
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info {};
  unsigned char head[100];
  if (fd_ < 0 || fstat(fd_, &info) != 0) BadInput("cannot open " + path);
  size_ = info.st_size;
  const bool complete = pread(fd_, head, sizeof head, 0) == sizeof head;
  const std::uint32_t raw = complete ? Big16(head + 16) : 0;
  page_size_ = raw == 1 ? 65536 : raw;
  usable_ = page_size_ - (complete ? head[20] : 0);
  if (!complete || std::memcmp(head, "SQLite format 3", 16) != 0 ||
      !std::has_single_bit(page_size_) || page_size_ < 512 || usable_ < 480) {
    close(fd_);
    BadInput(path + " is not an SQLite database (its header is missing or damaged)");
  }
  pages_ = static_cast<std::uint32_t>(size_ / page_size_);
  readable_ = head[18] == 1 && Big32(head + 56) == 1;
  window_.resize(std::max(kWindowBytes, page_size_));
}

PageFile::~PageFile() {
  if (fd_ >= 0) close(fd_);
}

const unsigned char* PageFile::Page(std::uint32_t number) {
  if (number == 0 || number > pages_) return nullptr;
  if (number < window_first_ || number >= window_first_ + window_count_) {
    const std::uint32_t most = static_cast<std::uint32_t>(window_.size()) / page_size_;
    const std::uint32_t count = std::min(most, pages_ - number + 1);
    const std::size_t bytes = static_cast<std::size_t>(count) * page_size_;
    const auto offset = static_cast<off_t>(number - 1) * page_size_;
    const ssize_t got = pread(fd_, window_.data(), bytes, offset);
    window_count_ = got <= 0 ? 0 : static_cast<std::uint32_t>(got) / page_size_;
    window_first_ = number;
    if (window_count_ == 0) return nullptr;
  }
  return window_.data() + static_cast<std::size_t>(number - window_first_) * page_size_;
}

void PageFile::Damaged(const std::string& table, std::uint32_t page) const {
  BadInput(path_ + " is damaged: page " + std::to_string(page) + " of table " + table +
           " cannot be read (was the export interrupted?)");
}

void PageFile::Scan(const std::string& table, std::uint32_t root, const ColumnPlan& plan,
                    const std::function<void(const Cell*)>& row) {
  Walk walk{table, plan, row, std::vector<Cell>(static_cast<std::size_t>(plan.slots)), {}, {}, 0};
  ScanPage(walk, root, 0);
}

void PageFile::ScanPage(Walk& walk, std::uint32_t number, int depth) {
  const unsigned char* page = Page(number);
  if (!page || depth > 20 || ++walk.visited > pages_) Damaged(walk.table, number);
  const std::uint32_t header = number == 1 ? 100 : 0;
  const unsigned char type = page[header];
  if (type == 0x0D) return ScanLeaf(walk, number, page);
  if (type != 0x05) Damaged(walk.table, number);
  // Children are copied first: reading them moves the page window.
  const std::uint32_t cells = Big16(page + header + 3);
  if (header + 12 + 2 * cells > page_size_) Damaged(walk.table, number);
  std::vector<std::uint32_t> children;
  children.reserve(cells + 1);
  for (std::uint32_t k = 0; k < cells; ++k) {
    const std::uint32_t at = Big16(page + header + 12 + 2 * k);
    if (at + 4 > page_size_) Damaged(walk.table, number);
    children.push_back(Big32(page + at));
  }
  children.push_back(Big32(page + header + 8));
  for (const std::uint32_t child : children) ScanPage(walk, child, depth + 1);
}

void PageFile::ScanLeaf(Walk& walk, std::uint32_t number, const unsigned char* page) {
  const std::uint32_t header = number == 1 ? 100 : 0;
  const std::uint32_t cells = Big16(page + header + 3);
  if (header + 8 + 2 * cells > page_size_) Damaged(walk.table, number);
  const std::uint32_t most_local = usable_ - 35;
  for (std::uint32_t k = 0; k < cells; ++k) {
    const std::uint32_t at = Big16(page + header + 8 + 2 * k);
    const unsigned char* p = page + at;
    const unsigned char* end = page + usable_;
    std::uint64_t payload = 0, rowid = 0;
    const int first = at < usable_ ? Varint(p, end, payload) : 0;
    const int second = first ? Varint(p + first, end, rowid) : 0;
    if (!second) Damaged(walk.table, number);
    p += first + second;
    const unsigned char* record = p;
    if (payload > most_local) {
      // The formula of the file format: how much of a long record stays on the page.
      const std::uint64_t least = (usable_ - 12) * 32 / 255 - 23;
      std::uint64_t local = least + (payload - least) % (usable_ - 4);
      if (local > most_local) local = least;
      if (p + local + 4 > end || payload > static_cast<std::uint64_t>(size_)) {
        Damaged(walk.table, number);
      }
      if (walk.leaf.empty() || page != walk.leaf.data()) {
        const std::ptrdiff_t offset = p - page;
        walk.leaf.assign(page, page + page_size_);
        page = walk.leaf.data();
        p = page + offset;
      }
      walk.spilled.assign(p, p + local);
      std::uint32_t next = Big32(p + local);
      while (walk.spilled.size() < payload) {
        const unsigned char* overflow = Page(next);
        if (!overflow) Damaged(walk.table, number);
        const std::uint64_t take =
            std::min<std::uint64_t>(usable_ - 4, payload - walk.spilled.size());
        walk.spilled.insert(walk.spilled.end(), overflow + 4, overflow + 4 + take);
        next = Big32(overflow);
      }
      record = walk.spilled.data();
    } else if (p + payload > end) {
      Damaged(walk.table, number);
    }
    if (!DecodeRecord(walk, record, payload, static_cast<std::int64_t>(rowid))) {
      Damaged(walk.table, number);
    }
  }
}

bool PageFile::DecodeRecord(Walk& walk, const unsigned char* record, std::uint64_t size,
                            std::int64_t rowid) const {
  const unsigned char* end = record + size;
  std::uint64_t header_size = 0;
  const int first = Varint(record, end, header_size);
  if (!first || header_size > size) return false;
  const unsigned char* head = record + first;
  const unsigned char* const head_end = record + header_size;
  const unsigned char* body = head_end;
  Cell* const cells = walk.cells.data();
  const int* const slots = walk.plan.slot_of_column.data();
  const std::size_t columns = walk.plan.slot_of_column.size();
  std::size_t column = 0;
  for (; column < columns && head < head_end; ++column) {
    std::uint64_t serial = 0;
    const int length = Varint(head, head_end, serial);
    if (!length || serial == 10 || serial == 11) return false;
    head += length;
    const std::uint64_t bytes = SerialSize(serial);
    if (bytes > static_cast<std::uint64_t>(end - body)) return false;
    if (slots[column] >= 0) Decode(serial, body, cells[slots[column]]);
    body += bytes;
  }
  for (; column < columns; ++column) {  // columns added after the row was written
    if (slots[column] >= 0) cells[slots[column]].type = Cell::kNull;
  }
  if (walk.plan.rowid_slot >= 0) {
    cells[walk.plan.rowid_slot].type = Cell::kInteger;
    cells[walk.plan.rowid_slot].integer = rowid;
  }
  walk.row(cells);
  return true;
}

}  // namespace assay::timeline
