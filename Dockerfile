# Training on an NVIDIA GPU: docker build -t rl-training . ; docker run --gpus all -v "$PWD/runs:/work/runs" rl-training train dqn --env CartPole-v1
# PyTorch's wheels bring CUDA's libraries with them, so the base image only has to let the driver in.
ARG BASE=nvidia/cuda:12.6.3-base-ubuntu24.04
FROM ${BASE}

# g++ and Python's headers: updates on the CPU are compiled. libgl1 and libglib2.0-0: what videos are drawn with.
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-dev python3-venv g++ libgl1 libglib2.0-0 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/rl-training
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir -c constraints.txt ".[atari,minatar,memory,video,distributed,export]"

ENV PATH=/opt/venv/bin:$PATH \
    OMP_NUM_THREADS=1 \
    SDL_VIDEODRIVER=dummy
WORKDIR /work
ENTRYPOINT ["rl-training"]
CMD ["doctor"]
