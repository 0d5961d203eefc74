// SHA-256, for content keys, input hashes and blob names; SHA-1, for the identity of solutions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace assay {

using Sha256Digest = std::array<std::uint8_t, 32>;

// Hashes a message that arrives in parts; after Finish() the object is used up.
class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();

  Sha256& Update(std::span<const std::byte> bytes);
  Sha256& Update(std::string_view text);
  Sha256Digest Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Sha256Digest Sha256Of(std::string_view text);

// 64 lower-case hex digits.
std::string Hex(const Sha256Digest& digest);
std::string Sha256Hex(std::string_view text);
std::string Sha256Hex(std::span<const std::byte> bytes);

// 40 lower-case hex digits. Names things that others named so; proves nothing.
std::string Sha1Hex(std::string_view text);

}  // namespace assay
