"""A loop of one's own in TensorFlow with `tf.GradientTape`: what is there for compression is marked.

torchrun --standalone --nproc-per-node 2 examples/train_tensorflow.py
"""

from __future__ import annotations

import argparse

import numpy
import tensorflow as tf
import torch.distributed as dist

from gradwire.frameworks.bridge import Bridge  # here


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--codec", default="bf16(sum='float32')", help="see: gradwire codecs")
    options.add_argument("--epochs", type=int, default=20)
    told = options.parse_args()

    dist.init_process_group("gloo")  # here
    bridge = Bridge(told.codec)  # here
    draw = numpy.random.default_rng(0)
    x = draw.standard_normal((512, 32)).astype("float32")
    y = x[:, :8].argmax(1)
    own = numpy.random.default_rng(bridge.rank)  # each rank begins with weights of its own
    shapes = [(32, 64), (64,), (64, 8), (8,)]
    variables = [tf.Variable(0.1 * own.standard_normal(shape), dtype=tf.float32) for shape in shapes]
    for variable, value in zip(variables, bridge.broadcast(variables), strict=True):  # here: now those of rank 0
        variable.assign(value)

    def loss_of(x, y):
        hidden = tf.tanh(x @ variables[0] + variables[1])
        scores = hidden @ variables[2] + variables[3]
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=scores))

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(x, y)
        gradients = bridge(tape.gradient(loss, variables))  # here
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(0.5 * gradient)

    for _ in range(told.epochs):
        for start in range(0, len(x), 64):
            mine = slice(start + bridge.rank, start + 64, bridge.size)  # here: a share of the batch
            step(tf.constant(x[mine]), tf.constant(y[mine]))
    loss = float(loss_of(x, y))
    weights = sum(float(numpy.abs(v.numpy().astype("float64")).sum()) for v in variables)
    if bridge.rank == 0:
        sent = bridge.stats()["sent_bytes_per_step"]
        print(f"loss {loss:.6f}, weights {weights:.9f}, {sent:.0f} bytes sent a step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
