#include "cuda/instruction_dump.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/random.h"

namespace assay {
namespace {

// Fields of an operand format as far as a generator needs them.
struct Fields {
  int exponent_bits, fraction_bits, bias;
  int low_bits;  // bits below the fraction, which the instruction should ignore
  bool infinities;
};

Fields FieldsOf(Operand operand) {
  switch (operand) {
    case Operand::kBF16:
      return {8, 7, 127, 0, true};
    case Operand::kF16:
      return {5, 10, 15, 0, true};
    case Operand::kTF32:
      return {8, 10, 127, 13, true};
    case Operand::kE4M3:
      return {4, 3, 7, 0, false};
    case Operand::kE5M2:
      return {5, 2, 15, 0, true};
  }
  throw Error(Fault::kInternal, "unknown operand format");
}
constexpr Fields kF32Fields{8, 23, 127, 0, true};

class Random {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}
  std::uint32_t Bits() { return static_cast<std::uint32_t>(Mix64(seed_, 0, next_++) >> 32); }
  int Between(int low, int high) {
    return low + static_cast<int>(Bits() % static_cast<std::uint32_t>(high - low + 1));
  }
  bool OneIn(int n) { return Between(1, n) == 1; }

 private:
  std::uint64_t seed_, next_ = 0;
};

// Builds codes of one format.
class Codes {
 public:
  Codes(const Fields& fields, Random& random) : fields_(fields), random_(random) {}

  int largest_field() const { return (1 << fields_.exponent_bits) - 1; }

  // Random sign and fraction; the exponent field is clamped to what is finite in every format.
  std::uint32_t WithField(int field) {
    const int finite = fields_.infinities ? largest_field() - 1 : largest_field();
    std::uint32_t fraction = random_.Bits() & ((1u << fields_.fraction_bits) - 1);
    if (!fields_.infinities && field >= finite) fraction &= ~1u;  // e4m3: all ones would be NaN
    return Assemble(random_.Bits() & 1u, std::clamp(field, 0, finite), fraction);
  }
  // Exponent within `spread` of `center`, both counted from 1.0.
  std::uint32_t Near(int center, int spread) {
    return WithField(fields_.bias + center + random_.Between(-spread, spread));
  }
  std::uint32_t Zero() { return Assemble(random_.Bits() & 1u, 0, 0) & SignMask(); }
  std::uint32_t Infinity() {
    if (!fields_.infinities) return WithField(largest_field());
    return Assemble(random_.Bits() & 1u, largest_field(), 0) & ~LowMask();
  }
  std::uint32_t NaN() {
    const std::uint32_t all = (1u << fields_.fraction_bits) - 1;
    const std::uint32_t some = 1u + random_.Bits() % all;
    return Assemble(random_.Bits() & 1u, largest_field(), fields_.infinities ? some : all);
  }
  std::uint32_t Any() {
    const int width = 1 + fields_.exponent_bits + fields_.fraction_bits + fields_.low_bits;
    return random_.Bits() >> (32 - width);
  }
  std::uint32_t Negated(std::uint32_t code) const { return code ^ SignMask(); }
  std::uint32_t NextFraction(std::uint32_t code) const { return code ^ (1u << fields_.low_bits); }

 private:
  std::uint32_t SignMask() const {
    return 1u << (fields_.exponent_bits + fields_.fraction_bits + fields_.low_bits);
  }
  std::uint32_t LowMask() const { return (1u << fields_.low_bits) - 1; }
  std::uint32_t Assemble(std::uint32_t sign, int field, std::uint32_t fraction) {
    std::uint32_t code = sign << fields_.exponent_bits | static_cast<std::uint32_t>(field);
    code = code << fields_.fraction_bits | fraction;
    return code << fields_.low_bits | (random_.Bits() & LowMask());
  }

  Fields fields_;
  Random& random_;
};

constexpr std::array<std::string_view, 11> kKinds = {
    "normal",         // exponents within 3 of 1.0
    "wide",           // exponents over the whole format, at most +-30
    "cancel",         // pairs of products that cancel, exactly or up to the last bit of an operand
    "cancel_c",       // the accumulator is minus the rounded sum of the products
    "subnormal_in",   // many subnormal operands
    "subnormal_out",  // sums below 2^-126 where the format reaches there; subnormal accumulators
    "zeros",          // most operands +-0, whole rows too; sign of zero, accumulator passed through
    "overflow",       // sums around the largest fp32
    "infinity",       // infinite operands and accumulators, some meeting zeros or each other
    "nan",            // NaNs of any payload, also beside infinities
    "bits",           // any code at all
};

// One operand of element `k`.
std::uint32_t OperandCode(std::string_view kind, Codes& codes, const Fields& fields,
                          Random& random) {
  const int reach = std::min(30, fields.bias);
  if (kind == "wide") return codes.Near(0, reach);
  if (kind == "subnormal_in") {
    return random.OneIn(2) ? codes.WithField(0) : codes.WithField(random.Between(1, 3));
  }
  if (kind == "subnormal_out") {
    if (random.OneIn(3)) return codes.Zero();
    return codes.Near(fields.exponent_bits == 8 ? -67 : -fields.bias, 6);
  }
  if (kind == "zeros") return random.OneIn(4) ? codes.Near(0, 3) : codes.Zero();
  if (kind == "overflow") return codes.Near(std::min(61, fields.bias), 2);
  if (kind == "infinity") {
    if (random.OneIn(40)) return codes.Infinity();
    return random.OneIn(40) ? codes.Zero() : codes.Near(0, 3);
  }
  if (kind == "nan") {
    if (random.OneIn(60)) return codes.NaN();
    return random.OneIn(60) ? codes.Infinity() : codes.Near(0, 3);
  }
  if (kind == "bits") return codes.Any();
  return codes.Near(0, 3);
}

std::uint32_t AccumulatorCode(std::string_view kind, Codes& codes, Random& random) {
  if (kind == "wide") return random.OneIn(4) ? codes.Zero() : codes.Near(0, 45);
  if (kind == "cancel") return random.OneIn(2) ? codes.Zero() : codes.Near(-14, 14);
  if (kind == "subnormal_in") return random.OneIn(2) ? codes.Zero() : codes.Near(-30, 60);
  if (kind == "subnormal_out") {
    return random.OneIn(2) ? codes.WithField(random.Between(0, 2)) : codes.Zero();
  }
  if (kind == "zeros") {
    if (random.OneIn(4)) return codes.Near(0, 30);
    return random.OneIn(3) ? codes.WithField(0) : codes.Zero();
  }
  if (kind == "overflow") {
    return random.OneIn(4) ? codes.Zero() : codes.WithField(random.Between(252, 254));
  }
  if (kind == "infinity") return random.OneIn(6) ? codes.Infinity() : codes.Near(0, 3);
  if (kind == "nan") {
    if (random.OneIn(10)) return codes.NaN();
    return random.OneIn(10) ? codes.Infinity() : codes.Near(0, 3);
  }
  if (kind == "bits") return codes.Any();
  return random.OneIn(8) ? codes.Zero() : codes.Near(2, 5);
}

void StoreCode(std::byte* at, int bytes, std::uint32_t code) {
  std::memcpy(at, &code, static_cast<std::size_t>(bytes));  // little endian
}

// Rows of an operand matrix. Products of elements 2 j and 2 j + 1 cancel in "cancel": A changes
// sign, B repeats its value or differs in the last fraction bit.
std::vector<std::byte> OperandRows(Operand operand, bool left, int rows, int row_bytes,
                                   std::string_view kind, Random& random) {
  const Fields fields = FieldsOf(operand);
  Codes codes(fields, random);
  const int bytes = OperandBytes(operand);
  const auto width = static_cast<std::size_t>(row_bytes);
  std::vector<std::byte> data(static_cast<std::size_t>(rows) * width);
  for (int row = 0; row < rows; ++row) {
    const bool zero_row = kind == "zeros" && random.OneIn(3);
    std::uint32_t previous = 0;
    for (int k = 0; k < row_bytes / bytes; ++k) {
      std::uint32_t code = zero_row ? codes.Zero() : OperandCode(kind, codes, fields, random);
      if (kind == "cancel" && k % 2 == 1) {
        code = left ? codes.Negated(previous)
                    : (random.OneIn(3) ? codes.NextFraction(previous) : previous);
      }
      previous = code;
      StoreCode(data.data() + static_cast<std::size_t>(row) * width + k * bytes, bytes, code);
    }
  }
  return data;
}

double ValueOf(Operand operand, std::uint32_t code) {
  switch (operand) {
    case Operand::kBF16:
      return ToFloat(bf16{static_cast<std::uint16_t>(code)});
    case Operand::kF16:
      return ToFloat(f16{static_cast<std::uint16_t>(code)});
    case Operand::kTF32:
      return std::bit_cast<float>(code & ~0x1FFFu);
    case Operand::kE4M3:
      return ToFloat(e4m3{static_cast<std::uint8_t>(code)});
    case Operand::kE5M2:
      return ToFloat(e5m2{static_cast<std::uint8_t>(code)});
  }
  return 0;
}

double DotInDouble(const InstructionRecord& record, int row, int column) {
  const MatrixInstruction& info = record.info();
  const int bytes = OperandBytes(info.a);
  double sum = 0;
  for (int k = 0; k < record.steps * info.k(); ++k) {
    std::uint32_t a = 0, b = 0;
    std::memcpy(&a, record.row_a(row) + k * bytes, static_cast<std::size_t>(bytes));
    std::memcpy(&b, record.row_b(column) + k * bytes, static_cast<std::size_t>(bytes));
    sum += ValueOf(info.a, a) * ValueOf(info.b, b);
  }
  return sum;
}

std::string PaddedName(const std::string& name, std::size_t width) {
  std::string padded = name;
  padded.resize(width, '\0');
  return padded;
}

constexpr std::string_view kMagic = "ASSAYMMA";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kInstructionName = 32, kOperandsName = 16;

template <class T>
void Append(std::string& text, const T* data, std::size_t count) {
  text.append(reinterpret_cast<const char*>(data), count * sizeof(T));
}

// Takes what it is asked for off the front of a file's bytes.
class Reader {
 public:
  Reader(const std::string& path, std::string_view bytes) : path_(path), rest_(bytes) {}
  std::string_view Take(std::size_t bytes) {
    if (rest_.size() < bytes) BadInput(path_ + " ends inside a record");
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  std::string TakeName(std::size_t width) {
    const std::string_view padded = Take(width);
    return std::string(padded.substr(0, padded.find('\0')));
  }
  std::uint32_t TakeU32() {
    std::uint32_t value = 0;
    std::memcpy(&value, Take(sizeof value).data(), sizeof value);
    return value;
  }
  template <class T>
  void TakeInto(std::vector<T>& values, std::size_t count) {
    values.resize(count);
    std::memcpy(values.data(), Take(count * sizeof(T)).data(), count * sizeof(T));
  }
  bool empty() const { return rest_.empty(); }

 private:
  const std::string& path_;
  std::string_view rest_;
};

InstructionRecord ReadRecord(Reader& reader, const std::string& path) {
  InstructionRecord record;
  record.instruction = reader.TakeName(kInstructionName);
  record.operands = reader.TakeName(kOperandsName);
  const MatrixInstruction* info = FindMatrixInstruction(record.instruction);
  if (info == nullptr) BadInput(path + ": unknown instruction '" + record.instruction + "'");
  const std::uint32_t steps = reader.TakeU32();
  if (steps == 0 || steps > 4096)
    BadInput(path + ": a chain of " + std::to_string(steps) + " steps");
  record.steps = static_cast<int>(steps);
  const std::size_t row_bytes = steps * std::size_t{MatrixInstruction::kBytes};
  const auto rows = static_cast<std::size_t>(info->m());
  reader.TakeInto(record.a, rows * row_bytes);
  reader.TakeInto(record.b, MatrixInstruction::n * row_bytes);
  reader.TakeInto(record.c, rows * MatrixInstruction::n);
  reader.TakeInto(record.d, rows * MatrixInstruction::n);
  return record;
}

}  // namespace

const MatrixInstruction& InstructionRecord::info() const {
  const MatrixInstruction* found = FindMatrixInstruction(instruction);
  if (found == nullptr) throw Error(Fault::kInternal, "unknown instruction '" + instruction + "'");
  return *found;
}
const std::byte* InstructionRecord::row_a(int row) const {
  return a.data() + static_cast<std::ptrdiff_t>(row) * steps * MatrixInstruction::kBytes;
}
const std::byte* InstructionRecord::row_b(int row) const {
  return b.data() + static_cast<std::ptrdiff_t>(row) * steps * MatrixInstruction::kBytes;
}

std::uint32_t ModelledBits(const InstructionRecord& record, int row, int column) {
  const auto at = static_cast<std::size_t>(row * MatrixInstruction::n + column);
  return std::bit_cast<std::uint32_t>(TensorCoreDot(
      RuleOf(record.info()), record.row_a(row), record.row_b(column),
      std::int64_t{record.steps} * record.info().k(), std::bit_cast<float>(record.c[at])));
}

std::span<const std::string_view> OperandKinds() { return kKinds; }

InstructionRecord MakeOperands(const MatrixInstruction& instruction, std::string_view operands,
                               int steps, std::uint64_t seed) {
  Random random(seed);
  InstructionRecord record;
  record.instruction = instruction.name;
  record.operands = operands;
  record.steps = steps;
  const int row_bytes = steps * MatrixInstruction::kBytes;
  record.a = OperandRows(instruction.a, true, instruction.m(), row_bytes, operands, random);
  record.b = OperandRows(instruction.b, false, MatrixInstruction::n, row_bytes, operands, random);
  Codes codes(kF32Fields, random);
  for (int row = 0; row < instruction.m(); ++row) {
    for (int column = 0; column < MatrixInstruction::n; ++column) {
      if (operands == "cancel_c") {
        const auto sum = static_cast<float>(-DotInDouble(record, row, column));
        record.c.push_back(std::bit_cast<std::uint32_t>(sum));
      } else {
        record.c.push_back(AccumulatorCode(operands, codes, random));
      }
    }
  }
  record.d.resize(record.c.size());
  return record;
}

void WriteInstructionDump(const std::string& path, std::span<const InstructionRecord> records) {
  std::string text(kMagic);
  const auto count = static_cast<std::uint32_t>(records.size());
  Append(text, &kVersion, 1);
  Append(text, &count, 1);
  for (const InstructionRecord& record : records) {
    text += PaddedName(record.instruction, kInstructionName);
    text += PaddedName(record.operands, kOperandsName);
    const auto steps = static_cast<std::uint32_t>(record.steps);
    Append(text, &steps, 1);
    Append(text, record.a.data(), record.a.size());
    Append(text, record.b.data(), record.b.size());
    Append(text, record.c.data(), record.c.size());
    Append(text, record.d.data(), record.d.size());
  }
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.flush()) BadInput(path + " cannot be written");
}

std::vector<InstructionRecord> ReadInstructionDump(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) BadInput(path + " cannot be read");
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Reader reader(path, bytes);
  if (reader.Take(std::min(kMagic.size(), bytes.size())) != kMagic) {
    BadInput(path + " is no dump of matrix instructions");
  }
  if (const std::uint32_t version = reader.TakeU32(); version != kVersion) {
    BadInput(path + " has version " + std::to_string(version) + ", expected 1");
  }
  std::vector<InstructionRecord> records;
  for (std::uint32_t left = reader.TakeU32(); left > 0; --left) {
    records.push_back(ReadRecord(reader, path));
  }
  if (!reader.empty()) BadInput(path + " goes on after its last record");
  return records;
}

}  // namespace assay
