// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The manifest of a checkpoint, written.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/train/checkpoint/manifest.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL auto manifest::find(std::string_view name) const noexcept -> const manifest_tensor* {
  for (const manifest_tensor& each : tensors)
    if (each.name == name) return &each;
  return nullptr;
}

BELAY_DECL std::string manifest_text::of(const manifest& from) {
  manifest_text writer;
  std::string& out = writer.out_;
  out = "{\"format\":";
  append_json(out, checkpoint_format);
  out += ",\n\"id\":";
  append_json(out, from.id);
  out += ",\"step\":" + std::to_string(from.step);
  out += ",\n\"mesh\":{\"pipeline\":" + std::to_string(from.mesh.pipeline) +
         ",\"data\":" + std::to_string(from.mesh.data) + ",\"expert\":" + std::to_string(from.mesh.expert) +
         ",\"tensor\":" + std::to_string(from.mesh.tensor) + ",\"shard_group\":" + std::to_string(from.mesh.shards()) +
         "},\n\"optimizers\":[";
  writer.list(from.optimizers, [&](const manifest_optimizer& each) {
    out += "{\"steps\":" + std::to_string(each.steps) + ",\"settings\":{";
    writer.list(each.settings, [&](const auto& one) {
      append_json(out, one.first);
      out += ':' + decimal(one.second);
    });
    out += "}}";
  });
  out += "],\n\"state\":{";
  writer.list(from.states, [&](const auto& one) {
    append_json(out, one.first);
    out += ':';
    append_json(out, one.second);
  });
  out += "},\n\"files\":[";
  writer.list(from.files, [&](const manifest_file& each) { writer.file(each); });
  out += "],\n\"tensors\":[";
  writer.list(from.tensors, [&](const manifest_tensor& each) { writer.tensor(each); });
  out += "],\n";
  const std::uint32_t checksum = crc32c_of(std::as_bytes(std::span<const char>(out)));
  out += checksum_field;
  append_hex(out, checksum, 8);
  out += "\"}\n";
  return std::move(out);
}

BELAY_DECL std::string manifest_text::of(const std::vector<manifest_tensor>& tensors) {
  manifest_text writer;
  writer.out_ = "[";
  writer.list(tensors, [&](const manifest_tensor& each) { writer.tensor(each); });
  return writer.out_ + "]";
}

BELAY_DECL void manifest_text::file(const manifest_file& each) {
  out_ += "{\"name\":";
  append_json(out_, each.name);
  out_ += ",\"bytes\":" + std::to_string(each.bytes) + ",\"crc32c\":\"";
  for (const std::uint32_t one : each.checksums) append_hex(out_, one, 8);
  out_ += "\"}";
}

BELAY_DECL void manifest_text::tensor(const manifest_tensor& each) {
  out_ += "{\"name\":";
  append_json(out_, each.name);
  out_ += ",\"shape\":[";
  for (std::size_t d = 0; d < each.shape.size(); ++d)
    out_.append(d > 0 ? "," : "").append(std::to_string(each.shape[d]));
  out_ += "],\"pieces\":[";
  list(each.pieces, [&](const manifest_piece& piece) {
    out_ += "{\"part\":";
    append_json(out_, piece.part);
    out_ += ",\"dtype\":\"" + std::string(safetensors::name(piece.type)) + "\",\"box\":[";
    for (std::size_t d = 0; d < piece.box.sides.size(); ++d) {
      const box_side& side = piece.box.sides[d];
      out_ += std::string(d > 0 ? "," : "") + "[" + std::to_string(side.first) + "," + std::to_string(side.end) + "]";
    }
    out_ += "],\"first\":" + std::to_string(piece.first) + ",\"count\":" + std::to_string(piece.count) +
            ",\"file\":" + std::to_string(piece.file) + ",\"begin\":" + std::to_string(piece.begin) + "}";
  });
  out_ += "]}";
}

BELAY_DECL std::string manifest_text::decimal(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

BELAY_DECL auto manifest_parser::parse() -> manifest {
  expect_checksum();
  manifest out;
  scan_.check_utf8();
  scan_.take('{');
  const std::string format = text_field("format", 64);
  if (format != checkpoint_format)
    scan_.fail(0, "is of format " + printable(format) + ", this program reads " + std::string(checkpoint_format));
  scan_.take(',');
  out.id = text_field("id", 64);
  scan_.take(',');
  out.step = number_field("step");
  scan_.take(',');
  out.mesh = mesh();
  scan_.take(',');
  key("optimizers");
  list('[', ']', [&] { out.optimizers.push_back(optimizer()); });
  scan_.take(',');
  key("state");
  list('{', '}', [&] {
    std::string name = scan_.string(safetensors::largest_name, "the name of a state");
    scan_.take(':');
    out.states.emplace_back(std::move(name), scan_.string(largest_manifest, "a state"));
  });
  scan_.take(',');
  key("files");
  list('[', ']', [&] { out.files.push_back(file()); });
  scan_.take(',');
  key("tensors");
  list('[', ']', [&] { out.tensors.push_back(tensor(&out.files)); });
  scan_.take(',');
  static_cast<void>(text_field("crc32c", 8));
  scan_.take('}');
  scan_.finish();
  return out;
}

BELAY_DECL auto manifest_parser::parse_tensors() -> std::vector<manifest_tensor> {
  std::vector<manifest_tensor> out;
  list('[', ']', [&] { out.push_back(tensor(nullptr)); });
  scan_.finish();
  return out;
}

BELAY_DECL void manifest_parser::expect_checksum() const {
  if (text_.size() < manifest_text::tail)
    throw file_error(path_, text_.size(), "is too short for the manifest of a checkpoint", at_);
  const std::string_view body = text_.substr(0, text_.size() - manifest_text::tail);
  std::string wanted(manifest_text::checksum_field);
  append_hex(wanted, crc32c_of(std::as_bytes(std::span<const char>(body))), 8);
  if (text_.substr(body.size()) != wanted + "\"}\n")
    throw file_error(path_, 0, "does not match its checksum: the manifest is damaged, or was edited", at_);
}

BELAY_DECL void manifest_parser::key(std::string_view wanted) {
  const std::size_t place = scan_.next();
  if (scan_.string(64, "a field") != wanted) scan_.fail(place, "expected field " + std::string(wanted));
  scan_.take(':');
}

BELAY_DECL std::string manifest_parser::text_field(std::string_view name, std::uint64_t most) {
  key(name);
  return scan_.string(most, "a text");
}

BELAY_DECL std::uint64_t manifest_parser::number_field(std::string_view name) {
  key(name);
  return scan_.integer(safetensors::largest_number);
}

BELAY_DECL auto manifest_parser::mesh() -> axes {
  key("mesh");
  scan_.take('{');
  axes out;
  bool first = true;
  for (auto [name, member] :
       {std::pair{"pipeline", &axes::pipeline}, std::pair{"data", &axes::data}, std::pair{"expert", &axes::expert},
        std::pair{"tensor", &axes::tensor}, std::pair{"shard_group", &axes::shard_group}}) {
    if (!std::exchange(first, false)) scan_.take(',');
    key(name);
    out.*member = static_cast<int>(scan_.integer(1U << 20U));
  }
  scan_.take('}');
  if (!out.valid()) scan_.fail(scan_.next(), "an axis of the mesh has no ranks");
  return out;
}

BELAY_DECL auto manifest_parser::optimizer() -> manifest_optimizer {
  manifest_optimizer out;
  scan_.take('{');
  out.steps = number_field("steps");
  scan_.take(',');
  key("settings");
  list('{', '}', [&] {
    std::string name = scan_.string(256, "a setting");
    scan_.take(':');
    out.settings.emplace_back(std::move(name), scan_.number());
  });
  scan_.take('}');
  return out;
}

BELAY_DECL auto manifest_parser::file() -> manifest_file {
  manifest_file out;
  scan_.take('{');
  const std::size_t place = scan_.next();
  out.name = text_field("name", 255);
  if (out.name.empty() || out.name == "." || out.name == ".." ||
      out.name.find_first_of(std::string_view("/\0", 2)) != std::string::npos)
    scan_.fail(place, printable(out.name) + " is no file beside the manifest");
  scan_.take(',');
  out.bytes = number_field("bytes");
  scan_.take(',');
  const std::size_t sums = scan_.next();
  const std::string hex = text_field("crc32c", largest_manifest);
  if (hex.size() != checkpoint_chunks(out.bytes) * 8)
    scan_.fail(sums, printable(out.name) + " has " + std::to_string(checkpoint_chunks(out.bytes)) + " chunks and " +
                         std::to_string(hex.size()) + " digits of checksums");
  for (std::size_t i = 0; i < hex.size(); i += 8) {
    std::uint32_t checksum = 0;
    const auto [end, wrong] = std::from_chars(hex.data() + i, hex.data() + i + 8, checksum, 16);
    if (wrong != std::errc{} || end != hex.data() + i + 8) scan_.fail(sums, "a checksum has other digits");
    out.checksums.push_back(checksum);
  }
  scan_.take('}');
  return out;
}

BELAY_DECL auto manifest_parser::tensor(const std::vector<manifest_file>* files) -> manifest_tensor {
  manifest_tensor out;
  scan_.take('{');
  const std::size_t place = scan_.next();
  out.name = text_field("name", safetensors::largest_name);
  scan_.take(',');
  key("shape");
  list('[', ']', [&] { out.shape.push_back(scan_.integer(safetensors::largest_number)); });
  std::uint64_t bytes = 0;
  if (!safetensors::size_in_bytes(safetensors::stored_type::f64, out.shape, bytes))
    scan_.fail(place, "tensor " + printable(out.name) + " is larger than any memory");
  scan_.take(',');
  key("pieces");
  list('[', ']', [&] { out.pieces.push_back(piece(out, files)); });
  scan_.take('}');
  return out;
}

BELAY_DECL auto manifest_parser::piece(const manifest_tensor& of, const std::vector<manifest_file>* files)
    -> manifest_piece {
  manifest_piece out;
  scan_.take('{');
  const std::size_t place = scan_.next();
  const auto refuse = [&](const std::string& why) {
    scan_.fail(place, "a piece of tensor " + printable(of.name) + " " + why);
  };
  out.part = text_field("part", 64);
  scan_.take(',');
  const std::string type = text_field("dtype", 16);
  const safetensors::stored_facts* const facts = safetensors::find_stored_type(type);
  if (facts == nullptr || facts->bits % 8 != 0) refuse("has dtype " + printable(type));
  out.type = facts->type;
  scan_.take(',');
  key("box");
  list('[', ']', [&] {
    scan_.take('[');
    box_side side;
    side.first = scan_.integer(safetensors::largest_number);
    scan_.take(',');
    side.end = scan_.integer(safetensors::largest_number);
    scan_.take(']');
    out.box.sides.push_back(side);
  });
  if (out.box.sides.size() != of.shape.size()) refuse("has a box of other dimensions");
  for (std::size_t d = 0; d < of.shape.size(); ++d)
    if (out.box.sides[d].first > out.box.sides[d].end || out.box.sides[d].end > of.shape[d])
      refuse("has box " + out.box.text() + ", which is not in it");
  scan_.take(',');
  out.first = number_field("first");
  scan_.take(',');
  out.count = number_field("count");
  const std::uint64_t elements = out.box.elements();
  if (out.first > elements || out.count > elements - out.first) refuse("has elements outside of its box");
  scan_.take(',');
  out.file = static_cast<std::size_t>(number_field("file"));
  scan_.take(',');
  out.begin = number_field("begin");
  scan_.take('}');
  if (files == nullptr) return out;
  if (out.file >= files->size()) refuse("lies in file number " + std::to_string(out.file));
  const std::uint64_t size = (*files)[out.file].bytes;
  if (out.begin > size || out.bytes() > size - out.begin)
    refuse("lies beyond the end of " + printable((*files)[out.file].name));
  return out;
}

BELAY_DECL manifest parse_manifest(std::string_view text, const std::string& path, where at) {
  return manifest_parser(text, path, at).parse();
}

}  // namespace belay::inline BELAY_ABI
