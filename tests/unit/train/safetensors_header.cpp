// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "belay/train/safetensors.hpp"

namespace {

namespace st = belay::safetensors;

// One refusal: the byte of the text (the file's is 8 more) and a part of the reason.
void refused(const std::string& text, std::uint64_t data_bytes, std::size_t byte, const char* why) {
  CAPTURE(text.substr(0, 200));
  try {
    static_cast<void>(st::parse_header(text, data_bytes, "hostile"));
    FAIL("accepted");
  } catch (const belay::file_error& error) {
    CAPTURE(error.what());
    CHECK(error.offset() == byte + 8);
    CHECK(std::string(error.what()).find(why) != std::string::npos);
  }
}

std::string one(const std::string& fields) { return "{\"a\":{" + fields + "}}"; }
std::string typed(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return one("\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets);
}
std::string tensor_entry(const std::string& name, int begin, int end) {
  return "\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(end - begin) + "],\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

std::string little_endian(std::uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFFU);
  return bytes;
}

// An independent opinion on a header: the rules once more, over a general JSON library.
bool oracle_accepts(const std::string& text, std::uint64_t data_bytes) {
  if (text.empty() || text[0] != '{') return false;
  bool twice = false;
  std::vector<std::set<std::string>> open;
  const auto watch = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using parse_event = nlohmann::json::parse_event_t;
    if (event == parse_event::object_start) open.emplace_back();
    if (event == parse_event::object_end) open.pop_back();
    if (event == parse_event::key && !open.back().insert(value.get<std::string>()).second) twice = true;
    return true;
  };
  const nlohmann::json root = nlohmann::json::parse(text, watch, false);
  if (root.is_discarded() || !root.is_object() || twice) return false;
  const auto plain = [](const nlohmann::json& n) {
    return n.is_number_unsigned() && n.get<std::uint64_t>() <= std::uint64_t{1} << 48;
  };
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__" && value.is_null()) continue;
    if (!value.is_object()) return false;
    if (name == "__metadata__") {
      for (const auto& each : value) {
        if (!each.is_string()) return false;
      }
      continue;
    }
    if (name.size() > 4096 || name.find("..") != std::string::npos || name.find('\0') != std::string::npos)
      return false;
    if (value.size() != 3 || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets"))
      return false;
    const auto& dtype = value["dtype"];
    const auto& shape = value["shape"];
    const auto& offsets = value["data_offsets"];
    if (!dtype.is_string() || !shape.is_array() || !offsets.is_array() || offsets.size() != 2) return false;
    if (!plain(offsets[0]) || !plain(offsets[1])) return false;
    const auto* facts = st::find_stored_type(dtype.get<std::string>());
    if (facts == nullptr) return false;
    __uint128_t size = facts->bits;
    for (const auto& extent : shape) {
      if (!plain(extent)) return false;
      size *= extent.get<std::uint64_t>();
      if (size >> 64U != 0) return false;
    }
    const auto begin = offsets[0].get<std::uint64_t>();
    const auto end = offsets[1].get<std::uint64_t>();
    if (size % 8 != 0 || end < begin || size / 8 != end - begin) return false;
    ranges.emplace_back(begin, end);
  }
  std::sort(ranges.begin(), ranges.end());
  std::uint64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != at) return false;
    at = end;
  }
  return at == data_bytes;
}

bool parser_accepts(const std::string& text, std::uint64_t data_bytes) {
  try {
    static_cast<void>(st::parse_header(text, data_bytes, "mutated"));
    return true;
  } catch (const belay::file_error&) {
    return false;
  }
}

}  // namespace

TEST_CASE("every rule of the header refuses its hostile case at the right byte") {
  refused("", 0, 0, "does not begin with {");
  refused(" {}", 0, 0, "does not begin with {");
  refused("[]", 0, 0, "does not begin with {");
  refused("{", 0, 1, "expected a tensor's name in quotes");
  refused("{}x", 0, 2, "something follows");
  refused("{\"a\":1}", 0, 5, "expected {");
  refused("{\"a\":{}}", 0, 5, "has no fields");
  refused("{\"\xC0\x80\":{}}", 0, 2, "valid UTF-8");
  refused("{\"\xED\xA0\x80\":{}}", 0, 2, "valid UTF-8");
  refused("{\"\xF4\x90\x80\x80\":{}}", 0, 2, "valid UTF-8");
  refused("{\"a\xE2\x82", 0, 3, "valid UTF-8");
  refused("{\"a\nb\":{}}", 0, 3, "control character");
  refused("{\"a", 0, 1, "no closing quote");
  refused("{\"\\x\":{}}", 0, 2, "unknown escape");
  refused("{\"\\u12\":{}}", 0, 2, "hexadecimal");
  refused("{\"\\ud800\":{}}", 0, 2, "surrogate");
  refused("{\"\\udc00\":{}}", 0, 2, "surrogate");
  refused(typed("F33", "[1]", "[0,4]"), 4, 14, "unknown dtype \"F33\"");
  refused(typed("F32", "[1.0]", "[0,4]"), 4, 29, "not an integer");
  refused(typed("F32", "[1e0]", "[0,4]"), 4, 29, "not an integer");
  refused(typed("F32", "[-1]", "[0,4]"), 4, 29, "not negative");
  refused(typed("F32", "[01]", "[0,4]"), 4, 29, "leading zeros");
  refused(typed("F32", "[281474976710657]", "[0,4]"), 4, 29, "larger than 281474976710656");
  refused(typed("F32", "[99999999999999999999999999]", "[0,4]"), 4, 29, "larger than");
  refused(typed("F32", "[[1]]", "[0,4]"), 4, 29, "expected an integer");
  refused(typed("F32", "[1]", "[0,4,8]"), 4, 51, "expected ]");
  refused(typed("F32", "[1]", "[4,0]"), 4, 5, "ends before it begins");
  refused(typed("F32", "[2]", "[0,4]"), 4, 5, "needs 8 bytes, its data_offsets give 4");
  refused(typed("F4", "[3]", "[0,1]"), 1, 5, "ends inside a byte");
  refused(typed("F64", "[281474976710656,281474976710656]", "[0,0]"), 0, 5, "overflows");
  refused(typed("U8", "[3]", "[1,4]"), 4, 1, "begins at byte 1 of the data, the one before ends at 0");
  refused("{" + tensor_entry("a", 0, 3) + "," + tensor_entry("b", 2, 4) + "}", 4, 53, "begins at byte 2");
  refused("{" + tensor_entry("a", 0, 3) + "," + tensor_entry("b", 4, 5) + "}", 5, 53, "begins at byte 4");
  refused("{" + tensor_entry("a", 0, 3) + "}", 4, 53, "take 3 bytes, the file holds 4");
  refused("{" + tensor_entry("a", 0, 3) + "}", 2, 53, "take 3 bytes, the file holds 2");
  refused("{" + tensor_entry("a", 0, 3) + "," + tensor_entry("a", 3, 4) + "}", 4, 53, "tensor a appears twice");
  refused("{" + tensor_entry("a", 0, 3) + "," + tensor_entry("\\u0061", 3, 4) + "}", 4, 53, "tensor a appears twice");
  refused("{" + tensor_entry("a..b", 0, 3) + "}", 3, 1, "holds \"..\"");
  refused("{" + tensor_entry("a\\u0000", 0, 3) + "}", 3, 1, "NUL");
  refused("{" + tensor_entry(std::string(4097, 'n'), 0, 3) + "}", 3, 1, "longer than 4096 bytes");
  refused("{" + tensor_entry("a", 0, 3) + ",}", 3, 53, "expected a tensor's name");
  refused(one("\"dtype\":\"U8\",\"shape\":[1]"), 1, 5, "has no data_offsets");
  refused(one("\"dtype\":\"U8\",\"data_offsets\":[0,1]"), 1, 5, "has no shape");
  refused(one("\"shape\":[1],\"data_offsets\":[0,1]"), 1, 5, "has no dtype");
  refused(one("\"dtype\":\"U8\",\"dtype\":\"U8\""), 1, 19, "field dtype twice");
  refused(one("\"dtype\":\"U8\",\"more\":{\"a\":{\"b\":{\"c\":{}}}}"), 1, 19, "unknown field \"more\"");
  refused("{\"__metadata__\":{\"a\":1}}", 0, 21, "expected a metadata value");
  refused("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, 25, "metadata key a appears twice");
  refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, 19, "__metadata__ appears twice");
  refused("{\"__metadata__\":null,\"__metadata__\":{}}", 0, 21, "__metadata__ appears twice");
  refused("{\"__metadata__\":nul}", 0, 16, "expected {");
  refused("{\"__metadata__\":nulls}", 0, 20, "expected }");
  refused("{\"__metadata__\":0}", 0, 16, "expected {");
  refused(std::string(5'000'000, '{'), 0, 1, "expected a tensor's name");
}

TEST_CASE("what the format allows is accepted, in whatever order and spacing") {
  CHECK(st::parse_header("{}", 0, "f").tensors.empty());
  const st::header read =
      st::parse_header("{ \"b\\u00e9\\ud83d\\ude00\" :\n{\"data_offsets\":[3,3],\"shape\":[0,9],\"dtype\":\"F64\"},\t" +
                           tensor_entry("z", 0, 3) + ",\"__metadata__\":{\"k\":\"v\",\"e\":\"\"}, " +
                           typed("F4", "[4]", "[3,5]").substr(1) + " \r\n ",
                       5, "f");
  REQUIRE(read.tensors.size() == 3);
  CHECK(read.tensors[0].name == "z");
  CHECK(read.tensors[1].name == "b\xC3\xA9\xF0\x9F\x98\x80");
  CHECK(read.tensors[2].type == st::stored_type::f4);
  CHECK(read.tensors[2].elements() == 4);
  CHECK(read.metadata.size() == 2);
  // Writers of an optional value, as the reference implementation is one, have a null where there is none.
  const st::header none = st::parse_header("{\"__metadata__\" : null ," + tensor_entry("a", 0, 3) + "}", 3, "f");
  CHECK(none.tensors.size() == 1);
  CHECK(none.metadata.empty());
}

TEST_CASE("more than a million tensors are refused") {
  std::string text = "{";
  for (int i = 0; i <= 1 << 20; ++i) {
    text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}";
  }
  CHECK_THROWS_WITH_AS(static_cast<void>(st::parse_header(text + "}", 0, "f")),
                       doctest::Contains("more than 1048576 tensors"), belay::file_error);
}

TEST_CASE("the lengths a file claims are checked against the file before anything is read") {
  const std::string path = "/tmp/belay_claims_" + std::to_string(::getpid());
  const auto claims = [&](const std::string& bytes, const char* why) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    CHECK_THROWS_WITH_AS(st::reader{path}, doctest::Contains(why), belay::file_error);
  };
  claims("", "too short");
  claims("1234567", "too short");
  claims(little_endian(0), "does not begin with {");
  claims(little_endian(3) + "{}", "claims a header of 3 bytes and has 2 left");
  claims(little_endian(100'000'001) + "{}", "claims a header of 100000001 bytes");
  claims(little_endian(~std::uint64_t{0}) + "{}", "claims a header of 18446744073709551615 bytes");
  const std::string whole = little_endian(53) + "{" + tensor_entry("a", 0, 3) + "}abc";
  std::ofstream(path, std::ios::binary | std::ios::trunc) << whole;
  CHECK(st::reader(path).tensors().size() == 1);
  for (std::size_t length = 0; length < whole.size(); ++length) {  // cut anywhere
    std::ofstream(path, std::ios::binary | std::ios::trunc) << whole.substr(0, length);
    CHECK_THROWS_AS(st::reader{path}, belay::file_error);
  }
  ::unlink(path.c_str());
}

TEST_CASE("parser and oracle agree on thousands of damaged headers") {
  const std::string good = "{\"__metadata__\":{\"format\":\"pt\"}," + tensor_entry("a", 0, 3) + "," +
                           tensor_entry("b\\n", 3, 3) +
                           ",\"c\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[3,11]}}  ";
  REQUIRE(parser_accepts(good, 11));
  REQUIRE(oracle_accepts(good, 11));
  const std::string alphabet = "{}[]\",:0123456789abc\\.-eu \xC3\xA9\n\x01";
  std::mt19937 random(1);
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = good;
    for (auto edits = random() % 2 + 1; edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      const char c = alphabet[random() % alphabet.size()];
      switch (random() % 4) {
        case 0: text[at] = c; break;
        case 1: text.insert(at, 1, c); break;
        case 2: text.erase(at, 1); break;
        default: text.insert(at, text.substr(random() % text.size(), random() % 60)); break;
      }
    }
    const bool ours = parser_accepts(text, 11);
    accepted += ours ? 1 : 0;
    CAPTURE(text);
    REQUIRE(ours == oracle_accepts(text, 11));
  }
  CHECK(accepted > 100);
  CHECK(accepted < 19'900);
}
