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

#include "belay/core/crc32c.hpp"
#include "belay/core/hexadecimal.hpp"
#include "belay/core/json_text.hpp"
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

}  // namespace belay::inline BELAY_ABI
