#include "tests/support/parity_golden.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/status_macros.h"
#include "tests/support/test_files.h"

namespace quire::test {
namespace {

constexpr char kFolder[] = "tests/golden/parity";

// Little-endian F32 as hex, eight digits a number.
std::vector<float> FloatsFromHex(const std::string& hex) {
  QUIRE_CHECK(hex.size() % 8 == 0);
  std::vector<float> out(hex.size() / 8);
  for (size_t i = 0; i < out.size(); ++i) {
    uint32_t bits = 0;
    for (size_t b = 0; b < 4; ++b) {
      uint32_t byte = 0;
      const char* at = hex.data() + 8 * i + 2 * b;
      QUIRE_CHECK(std::from_chars(at, at + 2, byte, 16).ec == std::errc());
      bits |= byte << (8 * b);
    }
    out[i] = std::bit_cast<float>(bits);
  }
  return out;
}

}  // namespace

ParityGolden LoadParityGolden(const std::string& name) {
  // Ordered, so that config.json is written as it stands.
  const auto j = nlohmann::ordered_json::parse(
      ReadSourceFile(std::string(kFolder) + "/" + name + ".json"), nullptr, false);
  QUIRE_CHECK(j.is_object());
  ParityGolden g;
  g.name = name;
  if (j.contains("config")) {
    const auto& w = j["weights"];
    g.checkpoint.config_json = j["config"].dump(1);
    g.checkpoint.seed = w["seed"];
    g.checkpoint.gain = w["gain"];
    g.checkpoint.embed = w["embed"];
    g.checkpoint.dtype = w["dtype"];
    g.checkpoint.fp8 = w["fp8"];
  }
  g.sha256 = j.value("sha256", "");
  g.text = j.value("text", "");
  j["prompt"].get_to(g.prompt);
  for (size_t i = 0; i < j["positions"].size(); ++i) {
    ParityGolden::Row row;
    row.position = j["positions"][i];
    row.norm = j["norms"][i];
    row.logits = FloatsFromHex(j["logits"][i]);
    if (j.contains("ids")) j["ids"][i].get_to(row.ids);
    g.rows.push_back(std::move(row));
  }
  j["greedy"]["tokens"].get_to(g.greedy);
  j["greedy"]["margins"].get_to(g.margins);
  return g;
}

std::vector<std::string> ParityGoldenNames(const std::string& prefix) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(SourcePath(kFolder))) {
    const std::string stem = entry.path().stem().string();
    if (entry.path().extension() == ".json" && stem.starts_with(prefix)) names.push_back(stem);
  }
  std::sort(names.begin(), names.end());
  return names;
}

LogitsError CompareLogits(const ParityGolden::Row& want, std::span<const float> logits) {
  double difference = 0, reference = 0, norm = 0;
  LogitsError error;
  QUIRE_CHECK(!want.ids.empty() || want.logits.size() == logits.size());
  for (size_t i = 0; i < want.logits.size(); ++i) {
    const double got = logits[want.ids.empty() ? i : static_cast<size_t>(want.ids[i])];
    const double d = got - want.logits[i];
    // NaN must not vanish in a maximum.
    if (!(std::abs(d) <= error.max_abs)) error.max_abs = std::abs(d);
    difference += d * d;
    reference += double{want.logits[i]} * want.logits[i];
  }
  for (float x : logits) norm += double{x} * x;
  error.relative_l2 = std::sqrt(difference / reference);
  error.norm_relative = std::abs(std::sqrt(norm) - want.norm) / want.norm;
  return error;
}

}  // namespace quire::test
