#include "io/sha256.h"

#include <openssl/evp.h>

#include "base/error.h"

namespace assay {
namespace {

void Require(int ok, const char* step) {
  if (ok != 1) throw Error(Fault::kInternal, std::string("SHA-256 failed in ") + step);
}

std::string HexOf(std::span<const std::uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (const std::uint8_t byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

}  // namespace

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();

  State() {
    Require(context != nullptr ? 1 : 0, "allocation");
    Require(EVP_DigestInit_ex(context, EVP_sha256(), nullptr), "initialisation");
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

Sha256& Sha256::Update(std::span<const std::byte> bytes) {
  Require(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()), "update");
  return *this;
}

Sha256& Sha256::Update(std::string_view text) {
  return Update(std::as_bytes(std::span(text.data(), text.size())));
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest{};
  Require(EVP_DigestFinal_ex(state_->context, digest.data(), nullptr), "finish");
  return digest;
}

Sha256Digest Sha256Of(std::string_view text) { return Sha256().Update(text).Finish(); }

std::string Hex(const Sha256Digest& digest) { return HexOf(digest); }

std::string Sha256Hex(std::string_view text) { return Hex(Sha256Of(text)); }

std::string Sha256Hex(std::span<const std::byte> bytes) {
  return Hex(Sha256().Update(bytes).Finish());
}

std::string Sha1Hex(std::string_view text) {
  std::array<std::uint8_t, 20> digest{};
  Require(EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha1(), nullptr),
          "SHA-1");
  return HexOf(digest);
}

}  // namespace assay
